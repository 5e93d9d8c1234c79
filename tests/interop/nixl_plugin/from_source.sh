#!/usr/bin/env bash
# from_source.sh TOWLINE NIXL_LIBRARY_DIR [PLUGIN]...: NIXL's plugins that reach other agents, compiled unchanged from a checkout against our
# headers, each with the real library under it: as a transport of Towline between two processes, every byte checked, and MOONCAKE behind NIXL's
# Python calls too. PLUGIN is UCX, LIBFABRIC or MOONCAKE; without one, all of them.
#
# TOWLINE is the command, NIXL_LIBRARY_DIR the folder of libnixl.so. From the environment:
#
#   TOWLINE_NIXL_CHECKOUT      a checkout of NIXL
#   TOWLINE_UCX                UCX 1.22 or later, a folder with include and lib: `pip install --target` of libucx-cu13 makes libucx
#   TOWLINE_LIBFABRIC          the folder of a libfabric.so.1 of 1.18 or later (mpich's wheel has one). Default: the loader's
#   TOWLINE_MOONCAKE_CHECKOUT  a checkout of Mooncake, near the wheel's version: its C functions, which the wheel does not have
#   TOWLINE_MOONCAKE_WHEEL     the folder that `pip install --no-deps --target` made of mooncake-transfer-engine-non-cuda
#   TOWLINE_NIXL_PYTHON        a Python, of that wheel's version, with towline-nixl and numpy. Default: build/venv/bin/python
#
# Packages: pkg-config libabsl-dev for UCX; pkg-config libabsl-dev libfabric-dev libhwloc-dev libnuma-dev for LIBFABRIC; libjsoncpp-dev libgoogle-glog-dev
# libibverbs-dev libnuma-dev libpython3-dev for MOONCAKE. One line for each plugin says passed, skipped and why, or FAILED. Exits 0 if nothing
# failed, 77 if all were skipped.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
towline=$(realpath "${1:?the command towline}")
nixl=$(realpath "${2:?the folder of libnixl.so}")
shift 2
plugins=("$@")
(($#)) || plugins=(UCX LIBFABRIC MOONCAKE)
checkout=$(realpath -m "${TOWLINE_NIXL_CHECKOUT:-/nowhere}")
ucx=$(realpath -m "${TOWLINE_UCX:-/nowhere}")
mooncake=$(realpath -m "${TOWLINE_MOONCAKE_CHECKOUT:-/nowhere}")
wheel=$(realpath -m "${TOWLINE_MOONCAKE_WHEEL:-/nowhere}")
python=${TOWLINE_NIXL_PYTHON:-$root/build/venv/bin/python}
if [[ ! -d $checkout/src/plugins ]]; then
  echo "skipped: no checkout of NIXL at '${TOWLINE_NIXL_CHECKOUT:-}'; set TOWLINE_NIXL_CHECKOUT"
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/utils"
ln -s "$checkout/src/utils/libfabric" "$work/utils/libfabric" # that plugin's own helpers; the others are ours
include=$root/compat/nixl/include
compile() { "${CXX:-c++}" -std=c++20 -O1 -w -fPIC -shared "$@"; }
# make NAME FILE OR OPTION...: the plugin NAME
make() {
  local name=$1
  shift
  compile -I"$include" -I"$include/utils" -I"$include/backend" -o "$work/libplugin_$name.so" "$@" -L"$nixl" -lnixl -lnixl_build -lserdes \
    "-Wl,-rpath,$nixl:$work"
}
bench() { # NAME
  TOWLINE_PLUGINS=nixl_net TOWLINE_NIXL_NET_LIBRARY=$work/libplugin_$1.so timeout 120 "$towline" bench --backend nixl_net --memory private \
    --sizes 4KiB,64KiB,1MiB --batches 16,64,16 --span 64MiB --from both --time 500ms
}
missing() { # HEADER...: says which is missing
  local header
  for header in "$@"; do
    [[ -f /usr/include/$header || -f /usr/include/$(gcc -print-multiarch)/$header ]] || { echo "skipped: there is no $header"; return 0; }
  done
  return 1
}
abseil() { pkg-config --libs absl_strings absl_str_format; }

check_UCX() {
  [[ -f $ucx/include/ucp/api/ucp.h ]] || { echo "skipped: no UCX at '${TOWLINE_UCX:-}'; set TOWLINE_UCX"; return 77; }
  ! missing absl/strings/str_join.h || return 77
  make UCX -I"$ucx/include" "$checkout"/src/plugins/ucx/*.cpp -L"$ucx/lib" -lucp -luct -lucs "-Wl,-rpath,$ucx/lib" $(abseil) || return 1
  UCX_MODULES=^ib,rdmacm bench UCX # their libnl crashes when the process ends
}

check_LIBFABRIC() {
  ! missing absl/strings/str_format.h rdma/fabric.h hwloc.h numa.h || return 77
  make LIBFABRIC -I"$work/utils" -I"$work/utils/libfabric" "$checkout"/src/{plugins,utils}/libfabric/*.cpp -lfabric -lhwloc -lnuma $(abseil) || return 1
  LD_LIBRARY_PATH=${TOWLINE_LIBFABRIC:+$(realpath "$TOWLINE_LIBFABRIC"):}${LD_LIBRARY_PATH:-} FI_PROVIDER=tcp bench LIBFABRIC
}

check_MOONCAKE() {
  local engine=$mooncake/mooncake-transfer-engine version
  [[ -d $engine ]] || { echo "skipped: no checkout of Mooncake at '${TOWLINE_MOONCAKE_CHECKOUT:-}'; set TOWLINE_MOONCAKE_CHECKOUT"; return 77; }
  [[ -f $wheel/mooncake/engine.so ]] || { echo "skipped: no wheel of Mooncake at '${TOWLINE_MOONCAKE_WHEEL:-}'; set TOWLINE_MOONCAKE_WHEEL"; return 77; }
  ! missing jsoncpp/json/json.h glog/logging.h infiniband/verbs.h numa.h || return 77
  version=$("$python" -c 'import sysconfig; print(sysconfig.get_python_version())') || return 1
  # The engine is a Python module: a program without Python finds Python's functions in the library.
  compile -I"$engine/include" -I"$mooncake/mooncake-common/include" -I/usr/include/jsoncpp "$engine/src/transfer_engine_c.cpp" \
    -o "$work/libtransfer_engine.so" -L"$wheel/mooncake" -l:engine.so -Wl,--no-as-needed "-lpython$version" "-Wl,-rpath,$wheel/mooncake" || return 1
  make MOONCAKE -I"$engine/include" "$checkout"/src/plugins/mooncake/*.cpp -L"$work" -ltransfer_engine || return 1
  export MC_FORCE_TCP=1 NIXL_MOONCAKE_IP_ADDR=127.0.0.1
  bench MOONCAKE || return 1
  timeout 120 "$python" "$root/tests/interop/nixl_plugin/real_agents.py" "$work/libplugin_MOONCAKE.so" --drop-in
}

failed=0 passed=0
for name in "${plugins[@]}"; do
  status=0
  (set +e; "check_$name") >"$work/output" 2>&1 || status=$?
  case $status in
    0)
      passed=1
      echo "passed: $name"
      grep -E '^from|  ok$|^moved|^left' "$work/output"
      ;;
    77) sed "s/^skipped: /skipped: $name: /" "$work/output" ;;
    *)
      failed=1
      echo "FAILED: $name (exit code $status)"
      sed 's/^/    /' "$work/output"
      ;;
  esac
done
((failed == 0)) || exit 1
((passed == 1)) || exit 77

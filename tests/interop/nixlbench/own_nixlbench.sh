#!/usr/bin/env bash
# own_nixlbench.sh NIXL_LIBRARY_DIR TOWLINE_LIBRARY_DIR [CHECKOUT]: NIXL's own nixlbench, unmodified, from a checkout of NIXL, compiled against
# our headers and linked to our libnixl.so: files by POSIX, and two processes by UCX that meet at an etcd server, all checking bytes.
# CHECKOUT defaults to $TOWLINE_NIXL_CHECKOUT. Debian has no etcd-cpp-api: nixl_shim/etcd stands for it, over the server's JSON interface.
#
# Processes that meet by --runtime_type=ASIO are not run: when one has ended, the other's last read from it may throw.
#
#   GFLAGS_PREFIX=/usr   where gflags is installed
#
# Exits 0 when both pass, 77 when the checkout or a library is missing, else 1.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
nixl=$(cd "${1:?the folder of libnixl.so}" && pwd)
towline=$(cd "${2:?the folder of libtowline.so}" && pwd)
checkout=${3:-${TOWLINE_NIXL_CHECKOUT:-}}
sources=$checkout/benchmark/nixlbench/src
gflags=${GFLAGS_PREFIX:-/usr}
[[ -d $sources ]] || { echo "skipped: no checkout of NIXL at '$checkout'; give its path, or set TOWLINE_NIXL_CHECKOUT"; exit 77; }
[[ -f $gflags/include/gflags/gflags.h ]] || { echo "skipped: gflags is not installed: scripts/install-deps nightly"; exit 77; }
command -v etcd >/dev/null || { echo "skipped: etcd is not installed: scripts/install-deps test"; exit 77; }

work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server"; rm -rf "$work"' EXIT
mkdir -p "$work"/{shim/toml++,files}
: >"$work/shim/config.h"  # what a build with NVSHMEM or CUDA says in it
printf '#pragma once\n#include "toml++/toml.h"\n' >"$work/shim/toml++/toml.hpp"  # the name in newer versions
options=(-std=c++20 -O1 -w -fopenmp -DHAVE_ETCD=1 -I"$work/shim" -I"$root/tests/interop/nixl_shim" -I"$sources" -I"$sources"/{runtime,worker,utils,runtime/etcd} -I"$gflags/include"
  -I"$root/compat/nixl/include")
libraries=(-L"$gflags/lib/$(c++ -print-multiarch)" -lgflags -lcurl -L"$nixl" -lnixl -lnixl_build -lserdes "-Wl,-rpath-link,$towline" -pthread)
export LD_LIBRARY_PATH=$nixl:$towline:$gflags/lib/$(c++ -print-multiarch)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
compiler=${CXX:-c++}
if command -v ccache >/dev/null; then compiler="ccache $compiler"; fi

cd "$work"
for file in main utils/utils utils/neuron worker/worker runtime/runtime runtime/etcd/etcd_rt worker/nixl/nixl_worker worker/nixl/nixl_mem_region; do
  $compiler "${options[@]}" -c "$sources/$file.cpp" -o "$(basename "$file").o"
done
$compiler -fopenmp ./*.o -o nixlbench "${libraries[@]}"

flags=(--total_buffer_size=33554432 --start_block_size=4096 --max_block_size=1048576 --num_iter=32 --warmup_iter=16 --check_consistency)
rows=9  # of 4 KiB, 8 KiB .. 1 MiB
failed=0
report() {  # NAME FILE STATUS
  if (($3 == 0)) && (($(grep -cE '^[0-9]+ +1 +[0-9.]+ ' "$2") == rows)) && ! grep -qi 'consistency check failed' "$2"; then
    echo "passed: nixlbench, $1: $rows sizes, every byte checked"
  else
    echo "FAILED: nixlbench, $1 (exit code $3)"
    sed 's/^/    /' "$2"
    failed=1
  fi
}

status=0
timeout 300 ./nixlbench --backend=POSIX --filepath="$work/files" "${flags[@]}" >posix.log 2>&1 || status=$?
report "POSIX" posix.log "$status"

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
endpoint=http://127.0.0.1:$(free_port)
peers=http://127.0.0.1:$(free_port)
etcd --data-dir "$work/etcd" --listen-client-urls "$endpoint" --advertise-client-urls "$endpoint" --listen-peer-urls "$peers" \
  --initial-advertise-peer-urls "$peers" --initial-cluster "default=$peers" >"$work/etcd.log" 2>&1 &
server=$!
curl --silent --retry 60 --retry-connrefused --retry-delay 1 "$endpoint/health" >/dev/null || { echo "FAILED: etcd"; cat "$work/etcd.log"; exit 1; }

for op in WRITE READ; do
  pair=(timeout 300 ./nixlbench --etcd_endpoints="$endpoint" --benchmark_group="$op" --backend=UCX --op_type="$op" "${flags[@]}")
  status=0
  "${pair[@]}" >one.log 2>&1 &
  one=$!
  "${pair[@]}" >other.log 2>&1 || status=$?
  wait "$one" || status=$?
  cat one.log other.log >both.log  # whichever was there first prints the table
  report "UCX, $op, by etcd" both.log "$status"
done
exit "$failed"

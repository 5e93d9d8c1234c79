#!/usr/bin/env bash
# nixl_gtest.sh NIXL_LIBRARY_DIR TOWLINE_LIBRARY_DIR [CHECKOUT]: NIXL's own C++ examples and tests, its mock plugin, its plugin POSIX and its
# exporter prometheus, unmodified, from a checkout of NIXL, compiled against our headers and linked to our libnixl.so. CHECKOUT defaults to
# $TOWLINE_NIXL_CHECKOUT.
#
# Only what those files take from NIXL's inside is put in its place: nixl_shim/ says what and why. Nothing of the
# checkout is kept.
#
#   TOWLINE_TORCH_PYTHON  a Python with torch, whose TCPStore holds metadata. Default: python3
#
# Exits 0 when all pass, 77 when there is no checkout, else 1.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
nixl=$(cd "${1:?the folder of libnixl.so}" && pwd)
towline=$(cd "${2:?the folder of libtowline.so}" && pwd)
checkout=${3:-${TOWLINE_NIXL_CHECKOUT:-}}
if [[ ! -d $checkout/test/gtest ]]; then
  echo "skipped: no checkout of NIXL at '${checkout}'; give its path, or set TOWLINE_NIXL_CHECKOUT"
  exit 77
fi

work=$(mktemp -d)
servers=()
trap '((${#servers[@]} == 0)) || kill "${servers[@]}"; rm -rf "$work"' EXIT
exporter=src/plugins/telemetry/prometheus
mkdir -p "$work"/{mocks,plugins,posix,files,exporter} "$work/$exporter"
# Copied, so that #include "common.h" finds ours and not its neighbour.
cp "$checkout"/examples/cpp/nixl_example.cpp "$checkout/test/gtest/unit/agent/agent.cpp" "$checkout/test/unit/plugins/path_mode_common.h" \
  "$checkout/test/unit/plugins/posix/nixl_posix_test.cpp" "$work/"
cp "$checkout"/test/gtest/{metadata_exchange,md_manager,query_mem,test_transfer,error_handling,plugin_manager,multi_threading}.cpp \
  "$checkout/test/gtest/gpu_utils.h" "$work/"
cp "$checkout"/test/gtest/mocks/{gmock_engine,mock_backend_plugin,mock_backend_engine}.cpp "$checkout"/test/gtest/mocks/*.h "$work/mocks/"
cp "$checkout"/src/plugins/posix/*.{cpp,h} "$work/posix/"
cp "$checkout/$exporter"/*.{cpp,h} "$checkout"/src/plugins/telemetry/common/*.h "$work/exporter/"
cp "$checkout"/test/gtest/{telemetry_histogram_test.cpp,prometheus_telemetry_fixture.h} "$checkout"/test/metrics/*.h "$work/"

shim=$root/tests/interop/nixl_shim
include=$root/compat/nixl/include
options=(-std=c++20 -O1 -w -fPIC -DHAVE_ETCD=1 "-DBUILD_DIR=\"$work\"" -I"$work" -I"$shim" -I"$include" -I"$include/utils" -I"$include/backend")
libraries=(-L"$nixl" -lnixl -lnixl_build -lserdes "-Wl,-rpath,$nixl" "-Wl,-rpath-link,$towline" -pthread)
export LD_LIBRARY_PATH=$nixl:$towline${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
compiler=${CXX:-c++}
if command -v ccache >/dev/null; then compiler="ccache $compiler"; fi
# Debian's googletest has GoogleMock's sources beside GoogleTest's.
gmock=/usr/src/googletest/googlemock
options+=(-I"$gmock/include")

cd "$work"
compile() {  # FILE... to NAME.o beside it
  local file
  for file in "$@"; do $compiler "${options[@]}" -c "$file.cpp" -o "$file.o"; done
}
$compiler "${options[@]}" -I"$gmock" -c "$gmock/src/gmock-all.cc" -o gmock.o
compile nixl_example metadata_exchange md_manager query_mem test_transfer error_handling plugin_manager
compile mocks/gmock_engine mocks/mock_backend_plugin mocks/mock_backend_engine agent multi_threading
$compiler nixl_example.o -o example "${libraries[@]}"
$compiler metadata_exchange.o md_manager.o query_mem.o test_transfer.o error_handling.o -o tests -lgtest -lgtest_main "${libraries[@]}"
# One program each, since agents leave plugins loaded.
for name in agent multi_threading plugin_manager; do
  $compiler "$name.o" mocks/gmock_engine.o gmock.o -o "$name" -lgtest -lgtest_main "${libraries[@]}"
done
$compiler -shared mocks/*.o gmock.o -o plugins/libplugin_MOCK_BACKEND.so -lgtest
# Its queue of POSIX AIO is always compiled, that of io_uring where liburing is.
queues=(posix/posix_aio_io_queue)
more=()
options+=(-DHAVE_POSIXAIO)
if [[ -f /usr/include/liburing.h ]]; then
  options+=(-DHAVE_LIBURING)
  queues+=(posix/io_uring_io_queue)
  more=(-luring)
fi
compile posix/posix_backend posix/posix_plugin posix/io_queue "${queues[@]}" nixl_posix_test
$compiler -shared posix/*.o -o plugins/libplugin_POSIX.so "${more[@]}" "${libraries[@]}"
$compiler nixl_posix_test.o -o posix_test "${libraries[@]}"
if [[ -f /usr/include/prometheus/exposer.h ]]; then
  options+=(-Iexporter)
  compile exporter/prometheus_exporter exporter/prometheus_plugin telemetry_histogram_test
  $compiler -shared exporter/*.o -o "$exporter/libtelemetry_exporter_prometheus.so" -lprometheus-cpp-pull -lprometheus-cpp-core "${libraries[@]}"
  $compiler telemetry_histogram_test.o -o histogram_test -lgtest -lgtest_main "${libraries[@]}"
fi

failed=0
if ./example >example.log 2>&1 && grep -q 'Test done' example.log; then
  echo "passed: nixl_example.cpp"
else
  echo "FAILED: nixl_example.cpp"
  sed 's/^/    /' example.log
  failed=1
fi

run() {  # NAME PROGRAM [GOOGLETEST ARGUMENT]...
  local name=$1 status=0
  shift
  timeout 600 "$@" --gtest_brief=1 >tests.log 2>&1 || status=$?
  if ((status == 0)) && grep -qE '^\[  PASSED  \] [1-9]' tests.log; then
    echo "passed: $name: $(grep -F '[  PASSED  ]' tests.log); $(grep -E '^\[  SKIPPED \] [0-9]' tests.log || echo 'none skipped')"
    grep -E 'skipping|not built|No local-only' tests.log | sort | uniq -c | sed 's/^ */skipped: /' || true
    return
  fi
  echo "FAILED: $name (exit code $status)"
  grep -E -B3 -A8 ': Failure|FAILED|terminate|Segmentation' tests.log | sed 's/^/    /' || sed 's/^/    /' tests.log
  return 1
}

# As long as no POSIX backend is among those the example lists, the cases that need one are left out.
left_out=()
if ! grep -qx POSIX example.log; then
  left_out=('--gtest_filter=-QueryMemTest.*')
  echo "left out: QueryMemTest, which needs the POSIX backend"
fi
run "metadata_exchange, md_manager, query_mem, test_transfer, error_handling" ./tests "${left_out[@]}" || failed=1

# Where agents find one another's metadata: each kind of server alone, since NIXL takes one at a time.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
if command -v etcd >/dev/null; then
  endpoint=http://127.0.0.1:$(free_port)
  peers=http://127.0.0.1:$(free_port)
  etcd --data-dir "$work/etcd" --listen-client-urls "$endpoint" --advertise-client-urls "$endpoint" --listen-peer-urls "$peers" \
    --initial-advertise-peer-urls "$peers" --initial-cluster "default=$peers" >"$work/etcd.log" 2>&1 &
  servers+=($!)
  curl --silent --retry 60 --retry-connrefused --retry-delay 1 "$endpoint/health" >/dev/null || { cat "$work/etcd.log"; failed=1; }
  NIXL_ETCD_ENDPOINTS=$endpoint run "metadata by etcd" ./tests '--gtest_filter=*Etcd*:*ETCD*' || failed=1
else
  echo "left out: metadata by etcd, which is not installed"
fi
torch=${TOWLINE_TORCH_PYTHON:-python3}
if "$torch" -c 'import torch.distributed' 2>/dev/null; then
  port=$(free_port)
  "$torch" -c "
import time, torch.distributed
store = torch.distributed.TCPStore('127.0.0.1', $port, is_master=True, wait_for_workers=False)
open('$work/store', 'w').close()
time.sleep(600)" &
  servers+=($!)
  for ((i = 0; i < 600; ++i)); do [[ ! -e $work/store ]] || break; sleep 0.1; done
  NIXL_TCPSTORE_ENDPOINT=127.0.0.1:$port run "metadata by TCPStore" ./tests '--gtest_filter=*TcpStore*' || failed=1
else
  echo "left out: metadata by TCPStore: $torch has no torch (TOWLINE_TORCH_PYTHON names one that has)"
fi
export NIXL_PLUGIN_DIR=$work/plugins
# It compares the times of one and of several registrations, which says nothing on a busy machine: three tries.
slow='singleAgentSessionFixture.RegisterDeregisterMemRepeatedTest'
run "unit/agent" ./agent "--gtest_filter=-$slow" || failed=1
for try in 1 2 3; do
  if run "unit/agent, times, try $try" ./agent "--gtest_filter=$slow"; then break; elif ((try == 3)); then failed=1; fi
done
run "multi_threading" ./multi_threading || failed=1
run "plugin_manager" ./plugin_manager || failed=1
if [[ -x histogram_test ]]; then
  run "telemetry_histogram_test with the exporter prometheus of the checkout" ./histogram_test || failed=1
else
  echo "left out: telemetry_histogram_test, whose exporter needs prometheus-cpp"
fi
for queue in '' ${more[@]:+-U}; do
  if TOWLINE_NIXL_PLUGINS=POSIX timeout 300 ./posix_test -n 4 -s 1048576 -d "$work/files" $queue >posix.log 2>&1; then
    echo "passed: nixl_posix_test.cpp $queue with the plugin POSIX of the checkout"
  else
    echo "FAILED: nixl_posix_test.cpp $queue with the plugin POSIX of the checkout"
    sed 's/^/    /' posix.log
    failed=1
  fi
done
exit "$failed"

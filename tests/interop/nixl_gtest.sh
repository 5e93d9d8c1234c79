#!/usr/bin/env bash
# nixl_gtest.sh NIXL_LIBRARY_DIR TOWLINE_LIBRARY_DIR [CHECKOUT]: NIXL's own C++ example and GoogleTest files,
# unmodified, from a checkout of NIXL, compiled against our headers and linked to our libnixl.so. CHECKOUT defaults to
# $TOWLINE_NIXL_CHECKOUT.
#
# Only what those files take from NIXL's inside is put in its place: nixl_shim/ says what and why. Nothing of the
# checkout is kept.
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
trap 'rm -rf "$work"' EXIT
# Copied, so that #include "common.h" finds ours and not its neighbour.
for file in examples/cpp/nixl_example.cpp test/gtest/{metadata_exchange,md_manager,query_mem,test_transfer}.cpp \
  test/gtest/gpu_utils.h; do
  cp "$checkout/$file" "$work/"
done
shim=$root/tests/interop/nixl_shim
options=(-std=c++20 -O1 -w -DHAVE_ETCD=1 "-DBUILD_DIR=\"$work\"" -I"$work" -I"$shim" -I"$root/compat/nixl/include")
libraries=(-L"$nixl" -lnixl -lnixl_build -lserdes "-Wl,-rpath,$nixl" "-Wl,-rpath-link,$towline" -pthread)
export LD_LIBRARY_PATH=$nixl:$towline${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
compiler=${CXX:-c++}
if command -v ccache >/dev/null; then compiler="ccache $compiler"; fi

cd "$work"
objects=()
for name in metadata_exchange md_manager query_mem test_transfer nixl_example; do
  $compiler "${options[@]}" -c "$name.cpp" -o "$name.o"
  [[ $name == nixl_example ]] || objects+=("$name.o")
done
$compiler nixl_example.o -o example "${libraries[@]}"
$compiler "${objects[@]}" -o tests -lgtest -lgtest_main "${libraries[@]}"

failed=0
if ./example >example.log 2>&1 && grep -q 'Test done' example.log; then
  echo "passed: nixl_example.cpp"
else
  echo "FAILED: nixl_example.cpp"
  sed 's/^/    /' example.log
  failed=1
fi

# Left out: what calls NIXL's inside; and, as long as no POSIX backend is among those the example lists, the cases that
# need one.
left_out='QueryMemTest.QueryMemDirectTest'
if ! grep -qx POSIX example.log; then
  left_out+=':QueryMemTest.*'
  echo "left out: QueryMemTest, which needs the POSIX backend"
fi
status=0
./tests --gtest_brief=1 "--gtest_filter=-$left_out" >tests.log 2>&1 || status=$?
if ((status == 0)); then
  echo "passed: $(grep -F '[  PASSED  ]' tests.log); $(grep -cF '[  SKIPPED ]' tests.log || true) lines of skipped tests"
  grep -E 'skipping|not built|No local-only' tests.log | sort | uniq -c | sed 's/^ */skipped: /' || true
else
  echo "FAILED: GoogleTest files (exit code $status)"
  grep -E -B3 -A8 ': Failure|FAILED|terminate|Segmentation' tests.log | sed 's/^/    /' || sed 's/^/    /' tests.log
  failed=1
fi
exit "$failed"

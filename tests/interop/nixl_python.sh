#!/usr/bin/env bash
# nixl_python.sh [CHECKOUT]: NIXL's own Python tests and examples, unmodified, from a checkout of NIXL, with the wheel
# towline-nixl in place of theirs. CHECKOUT defaults to $TOWLINE_NIXL_CHECKOUT.
#
#   TOWLINE_NIXL_VENV     virtual environment with torch to run in; made by scripts/torch-cpu when it is not there.
#                         Default: nixl-interop-venv in the folder for temporary files
#   TOWLINE_NIXL_PACKAGE  what to install: a wheel or a folder, or `installed` for what is there. Default: compat/nixl/python
#
# Exits 0 when all pass, 77 when there is no checkout, else 1.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
checkout=${1:-${TOWLINE_NIXL_CHECKOUT:-}}
venv=$(realpath -m "${TOWLINE_NIXL_VENV:-${TMPDIR:-/tmp}/nixl-interop-venv}")
if [[ ! -d $checkout/test/python ]]; then
  echo "skipped: no checkout of NIXL at '${checkout}'; give its path, or set TOWLINE_NIXL_CHECKOUT"
  exit 77
fi
checkout=$(cd "$checkout" && pwd)

"$root/scripts/torch-cpu" "$venv"
python=$venv/bin/python
package=${TOWLINE_NIXL_PACKAGE:-$root/compat/nixl/python}
"$python" -m pip install --quiet --disable-pip-version-check pytest pytest-timeout 'scikit-build-core>=0.10' 'nanobind>=2.4'
[[ $package == installed ]] || "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --force-reinstall \
  --no-deps --config-settings "build-dir=$venv/towline-nixl" "$package"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failed=0

# report NAME STATUS: one line for each part, and its output when it failed.
report() {
  if (($2 == 0)); then
    echo "passed: $1"
  else
    echo "FAILED: $1 (exit code $2)"
    sed 's/^/    /' "$work/output"
    failed=1
  fi
}

run() { # NAME COMMAND..
  local name=$1 status=0
  shift
  timeout 120 "$@" >"$work/output" 2>&1 || status=$?
  report "$name" "$status"
}

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# A target and an initiator, which exchange metadata at a port; both have to end with 0.
two_peers() { # SCRIPT
  local port target status=0 target_status=0
  port=$(free_port)
  timeout 180 "$python" "$checkout/examples/python/$1" --mode target --ip 127.0.0.1 --port "$port" >"$work/target" 2>&1 &
  target=$!
  # The initiator asks once: the target has to listen by then.
  "$python" - "$port" <<'P'
import socket, sys, time
end = time.monotonic() + 150
while socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1]))) and time.monotonic() < end:
    time.sleep(0.05)
P
  timeout 180 "$python" "$checkout/examples/python/$1" --mode initiator --ip 127.0.0.1 --port "$port" >"$work/output" 2>&1 ||
    status=$?
  wait "$target" || target_status=$?
  cat "$work/target" >>"$work/output"
  grep -q "Test Complete" "$work/target" || target_status=1
  report "examples/python/$1, initiator $status and target $target_status" $((status + target_status))
}

# The suite, with its own settings; its summary is the last line.
status=0
timeout 300 "$python" -m pytest -p no:cacheprovider -q -rs "$checkout/test/python" >"$work/suite" 2>&1 || status=$?
grep -E '^(SKIPPED|FAILED|ERROR)' "$work/suite" || true
tail -n 1 "$work/suite"
mv "$work/suite" "$work/output"
report "test/python" "$status"

run "test/python/desc_perf.py" "$python" "$checkout/test/python/desc_perf.py"
for mode in list array; do
  run "test/python/prep_xfer_perf.py $mode" "$python" "$checkout/test/python/prep_xfer_perf.py" "$mode"
done
two_peers basic_two_peers.py
two_peers expanded_two_peers.py
# It removes this variable, so that it has to be there.
NIXL_ETCD_ENDPOINTS=unused run "examples/python/partial_md_example.py" "$python" \
  "$checkout/examples/python/partial_md_example.py" --init-port "$(free_port)" --target-port "$(free_port)"
# GDS is listed where cuFile's library is.
if "$python" -c 'import sys, nixl; sys.exit("GDS" not in nixl.nixl_agent("any").get_plugin_list())' >/dev/null 2>&1; then
  truncate -s 131072 "$work/file"
  run "examples/python/nixl_gds_example.py" "$python" "$checkout/examples/python/nixl_gds_example.py" "$work/file"
else
  echo "left out: examples/python/nixl_gds_example.py: GDS is not in the list of plugins, as cuFile is not installed"
fi
run "examples/python/query_mem_example.py" "$python" "$checkout/examples/python/query_mem_example.py"
exit $failed

#!/usr/bin/env bash
# torchcomms.sh [CHECKOUT]: torchcomms' own tests, unmodified, from a checkout, with compat/torchcomms in its place.
# CHECKOUT defaults to $TOWLINE_TORCHCOMMS_CHECKOUT.
#
#   TOWLINE_TORCH_VENV  virtual environment with torch to run in; made by scripts/torch-cpu when it is not there.
#                       Default: torch-interop-venv in the folder for temporary files
#   TOWLINE_TORCH_PYTHON  an interpreter that has torch, pytest and both packages, instead of a virtual environment
#   TEST_DEVICE         cpu (the default), or cuda: the ranks share the GPUs that there are, and tests for GPUs run, too
#   RANKS               of the integration tests. Default: 4
#   TEST_BACKENDS       names to run the integration tests with. Default: gloo towline mccl
#   TEST_FULL_SWEEP     0: the short version of each (the default here), 1: all sizes and types
#   GRAPH_SHAPES        any: what the replays of CUDA graphs compute is checked, not the names and number of their nodes
#   ONLY                a pattern that the tests' file names have to match
#   RESULTS             a folder that keeps each file's line and output; what has one there is not run again
#   LIMIT               seconds that one file may take. Default: 300
#
# One line for each file: what passed, failed and was skipped. Exits 0 when nothing failed but what `known` lists, 77 when
# there is no checkout, else 1. docs/migrating-from-torchcomms.md explains what is known to fail, and what is not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
checkout=${1:-${TOWLINE_TORCHCOMMS_CHECKOUT:-}}
venv=${TOWLINE_TORCH_VENV:-${TMPDIR:-/tmp}/torch-interop-venv}
tests=$checkout/comms/torchcomms
if [[ ! -d $tests/tests ]]; then
  echo "skipped: no checkout of torchcomms at '${checkout}'; give its path, or set TOWLINE_TORCHCOMMS_CHECKOUT"
  exit 77
fi

python=${TOWLINE_TORCH_PYTHON:-$venv/bin/python}
[[ -n ${TOWLINE_TORCH_PYTHON:-} ]] || "$root/scripts/torch-cpu" "$venv"
if [[ -z ${TOWLINE_TORCH_VENV_READY:-}${TOWLINE_TORCH_PYTHON:-} ]]; then
  "$python" -m pip install --quiet --disable-pip-version-check pytest expecttest 'scikit-build-core>=0.10' 'nanobind>=2.4'
  "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
    "$root/bindings/python" "$root/compat/torchcomms"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
export TEST_DEVICE=${TEST_DEVICE:-cpu}
[[ $TEST_DEVICE == cuda ]] || export CUDA_VISIBLE_DEVICES=""
export TEST_FULL_SWEEP=${TEST_FULL_SWEEP:-0} OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
export PYTHONDONTWRITEBYTECODE=1
TORCHCOMMS_CHECKOUT=$(cd "$checkout" && pwd)
export TORCHCOMMS_CHECKOUT PYTHONPATH=$root/tests/interop/torchcomms_path${PYTHONPATH:+:$PYTHONPATH}

results=${RESULTS:-$work/results}
mkdir -p "$results"
results=$(cd "$results" && pwd)

# Tests that fail for a reason that the page gives, as pytest names them.
known=(test_backend_wrapper.py::TestBackendWrapper::test_window_dispatches_through_backend_wrapper)
# With ranks that share a GPU.
[[ $TEST_DEVICE == cpu ]] || known+=(::test_fr_abort_hook_writes_traces_on_simulated_rank_failure TestTimeout::test_graph_timeout)

# True if the output FILE names tests that failed, and all of them are known.
all_known() {
  local failures
  failures=$(grep -aE '^(FAILED|ERROR) ' "$1") || return 1
  for name in "${known[@]}"; do failures=$(grep -vF "$name" <<<"$failures" || true); done
  [[ -z $failures ]]
}

# run NAME COMMAND..: one line, and the failures by name. What ends for being too late is told by exit code 124.
run() {
  local name=$1 status=0
  local kept=$results/${name//[ \/]/_}
  shift
  if [[ ! -f $kept.line ]]; then
    timeout --signal=INT --kill-after=20 "${LIMIT:-300}" "$@" >"$kept.log" 2>&1 || status=$?
    echo "$name: exit code $status; $(grep -aE '[0-9]+ (passed|failed|skipped|error)' "$kept.log" | tail -n 1)" >"$kept.line"
  fi
  cat "$kept.line"
  grep -qE ': exit code [05];' "$kept.line" && return
  if grep -q ': exit code 1;' "$kept.line" && all_known "$kept.log"; then
    echo "  all of these failures are known"
    return
  fi
  grep -aE '^(FAILED|ERROR)' "$kept.log" | sort -u | head -n 20 || true
  [[ -n ${SHOW:-} ]] && tail -n "$SHOW" "$kept.log"
  failed=1
}

cd "$work"
# Not for CPUs: they name GPUs' memory, streams or backends and fail, rather than skip, without them. Fullgraph* import
# torchcomms' own modules for torch.compile.
apart='^(Fullgraph)'
[[ $TEST_DEVICE == cuda ]] || apart='^(CudaGraphs|Fullgraph|AllGatherP|MemPool|ExpandableSegments|SymmMem|Timeout)'
distwrap_apart='Quantized'
with_pytest=("$python" "$root/tests/interop/torchcomms_pytest.py" -q -p no:cacheprovider)
torchrun=("$python" -m torch.distributed.run --standalone --nnodes 1 --nproc_per_node)
ours() { [[ $1 =~ ${ONLY:-.} ]]; }

for file in "$tests"/tests/unit/py/test_{hooks,copy,python_backend,backend_wrapper,factory,test_helpers}.py \
  "$tests"/distwrap/tests/unit/test_*.py; do
  ours "$file" || continue
  TEST_BACKEND=fake run "${file#"$tests"/}" "${with_pytest[@]}" "$file"
done
for backend in ${TEST_BACKENDS:-gloo towline mccl}; do
  for file in "$tests"/hooks/{fr,nan_check,clog}/tests/py/*.py "$tests"/tests/integration/py/*Test.py; do
    name=$(basename "$file")
    [[ $name =~ $apart || $name == __init__.py ]] && continue
    ours "$file" || continue
    TEST_BACKEND=$backend run "$backend $name" "${torchrun[@]}" "${RANKS:-4}" "${with_pytest[@]:1}" "$file"
  done
done
# distwrap's choose the backend themselves: torch.distributed's own gloo, then torchcomms. On GPUs they want a device that
# torch refuses, also without torchcomms.
[[ $TEST_DEVICE == cpu ]] || exit $failed
for mode in 0 1; do
  for file in "$tests"/distwrap/tests/integration/*Test.py; do
    [[ $(basename "$file") =~ $distwrap_apart ]] && continue
    ours "$file" || continue
    USE_TORCHCOMMS=$mode TEST_BACKEND=gloo run "distwrap $mode $(basename "$file")" "${torchrun[@]}" "${RANKS:-4}" "${with_pytest[@]:1}" "$file"
  done
done
exit $failed

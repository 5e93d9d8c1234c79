#!/usr/bin/env bash
# torch_distributed.sh [PYTEST ARGUMENTS]: torch.distributed and torchcomms' surface on Towline, with a real torch.
#
#   TOWLINE_TORCH_VENV  virtual environment with torch to run in; made by scripts/torch-cpu when it is not there.
#                       Default: torch-interop-venv in the folder for temporary files
#   TORCH_VERSION       of the one that is made, see scripts/torch-cpu
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=${TOWLINE_TORCH_VENV:-${TMPDIR:-/tmp}/torch-interop-venv}

"$root/scripts/torch-cpu" "$venv"
python=$venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check pytest 'scikit-build-core>=0.10' 'nanobind>=2.4'
# The build folder is kept, so that a second run compiles what has changed.
"$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings "build-dir=$(realpath "$venv")/towline" "$root/bindings/python"
"$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps "$root/compat/torchcomms"
# Four processes that read torch from a cold disk at once take longer than the tests wait for them.
"$python" -c 'import torch.distributed, torch._dynamo'
run() { "$python" -m pytest -q -p no:cacheprovider "$@"; }
run "$root/bindings/python/tests/"test_torch_*.py "$@"
TOWLINE_TEST_PROCESS_GROUP=1 run "$root/bindings/python/tests/"test_torch_*.py "$@" # as torch before 2.14 has it
run "$root/compat/torchcomms/tests" "$@"

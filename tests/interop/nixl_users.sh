#!/usr/bin/env bash
# nixl_users.sh [lmcache] [vllm] [dynamo] [sglang]: the NIXL code of these, unmodified, from their wheels, with the wheel
# towline-nixl in place of NIXL's, on the memory of the host. Without arguments: all. nixl_users/ says what of them runs.
#
#   TOWLINE_NIXL_USERS    virtual environment to run in, made when it is not there: torch as of scripts/torch-cpu, their
#                         wheels without their dependencies, and of those what the parts need. 3 GB are downloaded for it.
#   TOWLINE_NIXL_PACKAGE  what to install: a wheel or a folder. Default: compat/nixl/python
#   TOWLINE_GPU_MODEL     library of GPU models, which *_experts.py need. Default: of build/ci or build/dev
#
# Exits 0 when all pass, 77 when TOWLINE_NIXL_USERS is not set, else 1.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=${TOWLINE_NIXL_USERS:+$(realpath -m "$TOWLINE_NIXL_USERS")}
if [[ -z $venv ]]; then
  echo "skipped: TOWLINE_NIXL_USERS names no folder for an environment with torch and the programs"
  exit 77
fi
users=("$@")
(($#)) || users=(lmcache vllm dynamo sglang)

"$root/scripts/torch-cpu" "$venv"
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

declare -A wheels=([lmcache]=lmcache==0.5.6 [vllm]=vllm==0.33.0 [dynamo]="ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1"
  [sglang]=sglang==0.5.23)
# The dependencies that the parts import.
declare -A needs=(
  [lmcache]="msgspec pyzmq pyyaml psutil prometheus-client sortedcontainers aiofiles aiofile aiohttp requests py-cpuinfo
    numpy numba cachetools nvtx httpx blake3 safetensors opentelemetry-api opentelemetry-sdk
    opentelemetry-exporter-prometheus redis xxhash fastapi cryptography"
  [vllm]="msgspec pyzmq psutil numpy regex cloudpickle transformers pydantic cachetools py-cpuinfo cbor2 pybase64
    prometheus-client aiohttp requests einops pillow uvloop openai openai-harmony partial-json-parser fastapi"
  [dynamo]="msgspec pydantic safetensors numpy packaging pyyaml aiohttp pillow redis"
  [sglang]="numpy msgspec")
pip install 'scikit-build-core>=0.10' 'nanobind>=2.4'
failed=0
skipped=()
for user in "${users[@]}"; do
  # shellcheck disable=SC2086
  pip install ${needs[$user]}
  # shellcheck disable=SC2086
  pip install --no-deps ${wheels[$user]}
done
# Last, since it takes the place of what they may bring. A build folder of its own: `make python` has another.
pip install --no-build-isolation --force-reinstall --no-deps --config-settings "build-dir=$venv/towline-nixl" \
  "${TOWLINE_NIXL_PACKAGE:-$root/compat/nixl/python}"
for user in "${users[@]}"; do
  for program in "$root/tests/interop/nixl_users/$user"_*.py; do
    status=0
    timeout 900 "$venv/bin/python" "$program" || status=$?
    ((status == 0)) && continue
    if ((status == 77)); then # it says why
      skipped+=("$(basename "$program")")
      continue
    fi
    echo "FAILED: $(basename "$program") (exit code $status)"
    failed=1
  done
done
((${#skipped[@]} == 0)) || echo "SKIPPED, and not passed: ${skipped[*]}"
exit $failed

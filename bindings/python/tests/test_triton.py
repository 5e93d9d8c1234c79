"""Kernels in Triton over the memory of several ranks: compiled for GPUs, and run by Triton's interpreter over GPUs made of host memory.

On a GPU: test_gpu_triton.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed: scripts/torch-cpu makes an environment with it")

import gpu_model  # noqa: E402
import triton_ranks as ranks_do  # noqa: E402
from collective_ranks import Ranks  # noqa: E402

pytestmark = pytest.mark.skipif(not ranks_do.has_triton(), reason="no Triton: scripts/triton-cpu fetches it")

COMPILE = """
import re, sys
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from towline import triton_device

kernel = triton_device.all_reduce
constants = {"rank": 0, "size": 4, "slots": 8, "dtype": tl.bfloat16, "block": 1024}
types = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
types |= {"table": "*i64", "output": "*bf16", "failed": "*i32"}
values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
made = compile(ASTSource(fn=kernel, signature=types, constexprs=values), target=GPUTarget("cuda", int(sys.argv[1]), 32))
print(*sorted(set(re.findall(r"\\S+\\.sys\\.\\S+", made.asm["ptx"]))))
"""


@pytest.mark.parametrize("capability", [80, 90])
def test_signals_are_released_to_the_system_and_acquired_from_it(capability, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, str(capability)],
        env=ranks_do.with_triton() | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    words = ran.stdout.split()
    assert any(".release.add" in word for word in words), words
    assert any("ld.global" in word and ".acquire" in word for word in words), words


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if gpu_model.find() is None:
        pytest.skip("no library of GPU models: build the tests of preset ci")
    ranks = Ranks(2, str(tmp_path_factory.mktemp("triton")), ranks_do.serve_on_model)
    yield ranks
    assert ranks.stop() == [0, 0]


def test_ranks_put_signal_wait_and_get(ranks):
    ranks.run(ranks_do.exchange)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_the_example_is_an_all_reduce(ranks, dtype):
    ranks.run(ranks_do.all_reduce, dtype)


def test_a_wait_for_a_rank_that_does_not_come_ends(ranks):
    assert ranks.run(ranks_do.come_alone) == [1, None]

"""Kernels in Triton over the memory of two ranks, on a GPU. Needs a GPU, and a torch and Triton that see it.

Kernels of several processes take turns on a GPU, at some milliseconds an exchange.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

import triton_ranks as ranks_do  # noqa: E402
from collective_ranks import Ranks  # noqa: E402


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(2, str(tmp_path_factory.mktemp("triton")), ranks_do.serve_on_gpu)
    yield ranks
    assert ranks.stop() == [0, 0]


def test_ranks_put_signal_wait_and_get(ranks):
    ranks.run(ranks_do.exchange)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_the_example_is_an_all_reduce(ranks, dtype):
    ranks.run(ranks_do.all_reduce, dtype)


def test_a_wait_for_a_rank_that_does_not_come_ends(ranks):
    assert ranks.run(ranks_do.come_alone) == [1, None]

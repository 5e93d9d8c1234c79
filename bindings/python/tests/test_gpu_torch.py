"""torch.distributed with backend="towline" on a GPU that all ranks share. Needs one, and a torch that sees it.

Kernels of several processes take turns on a GPU, at some milliseconds an exchange: few operations are done here.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

import torch_ranks as ranks_do  # noqa: E402
import torch_symmetric_ranks as symmetric_do  # noqa: E402
from collective_ranks import Ranks  # noqa: E402

SIZE = 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(SIZE, str(tmp_path_factory.mktemp("torch")), ranks_do.serve_on_gpu)
    yield ranks
    assert ranks.stop() == [0] * SIZE


@pytest.mark.parametrize("what", ["beside_a_stream_of_a_gpu", "dropped_works_on_a_gpu", "captured"])
def test_streams(ranks, what):
    ranks.run(getattr(ranks_do, what))


@pytest.mark.parametrize("count", [7, 200_003])
def test_operations_are_like_gloos(ranks, count):
    ranks.run(ranks_do.operations, "float32", count)


@pytest.mark.parametrize("what", ["uneven", "messages", "messages_together", "objects", "functional", "compiled", "norm"])
def test_operations(ranks, what):
    ranks.run(getattr(ranks_do, what))


@pytest.mark.parametrize("what", ["data_parallel", "fully_sharded", "tensor_parallel"])
def test_training(ranks, what):
    ranks.run(getattr(ranks_do, what))


def test_ranks_that_disagree_are_told(ranks):
    told = ranks.run(ranks_do.disagree_on_gpus)
    assert all("ranks disagree" in one and "of 4 float32" in one and "of 3 float32" in one for one in told), told


def test_a_rank_that_does_not_come_is_named(ranks):
    told = ranks.run(ranks_do.late_on_gpus)
    assert all("rank 0 did not come" in one for one in told[1:]), told


@pytest.fixture(scope="module")
def extension():
    """Compiled once, for all ranks: that takes about as long as a rank may take to answer."""
    from towline import torch_symmetric

    return torch_symmetric._extension()


@pytest.mark.parametrize("what", ["symmetric", "symmetric_comes_and_goes", "symmetric_operations"])
def test_symmetric_memory_of_torch(extension, ranks, what):
    ranks.run(getattr(symmetric_do, what))

"""torch.distributed with backend="towline": every operation like gloo's, and what torch builds on them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/torch-cpu makes an environment with it")
dist = torch.distributed

import torch_layout_ranks as layout_ranks_do  # noqa: E402
import torch_ranks as ranks_do  # noqa: E402
from collective_ranks import Ranks  # noqa: E402
from towline import _torch_group  # noqa: E402

SIZE = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(SIZE, str(tmp_path_factory.mktemp("torch")), ranks_do.serve)
    yield ranks
    assert ranks.stop() == [0] * SIZE


@pytest.mark.parametrize("timeout", [0.05, 0.0005, 0.0])
@pytest.mark.parametrize("kind", ["file", "hash", "tcp"])
def test_a_key_that_does_not_come_is_a_timeout_in_every_store(tmp_path, kind, timeout):
    store = {
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
        "hash": dist.HashStore,
        "tcp": lambda: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
    }[kind]()
    with pytest.raises(TimeoutError, match="(?i)timeout"):
        _torch_group.Store(dist.PrefixStore("group", store)).get("absent", timeout)


@pytest.mark.parametrize("factor", [2.5, torch.tensor([2.5])], ids=["number", "tensor"])
def test_a_factor_is_read_where_reductions_have_no_such_attribute(monkeypatch, factor):
    monkeypatch.delattr(dist.ReduceOp, "factor", raising=False)  # torch 2.7 to 2.11
    options = dist.AllreduceOptions()
    options.reduceOp = dist._make_nccl_premul_sum(factor)
    assert _torch_group._reduction(options) == (_torch_group._PREMUL_SUM, 2.5)


def test_the_group_is_ours(ranks):
    for rank, told in enumerate(ranks.run(ranks_do.names)):
        assert told[:3] == ("towline", rank, SIZE), told


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8"])
def test_operations_are_like_gloos(ranks, dtype):
    ranks.run(ranks_do.operations, dtype, 7)


def test_operations_on_much(ranks):
    ranks.run(ranks_do.operations, "float32", 200_003)


@pytest.mark.parametrize("what", ["uneven", "unusual_tensors", "works", "messages", "messages_of_anyone", "objects", "functional", "compiled", "norm"])
def test_operations(ranks, what):
    ranks.run(getattr(ranks_do, what))


@pytest.mark.parametrize("what", ["data_parallel", "fully_sharded", "tensor_parallel"])
def test_training(ranks, what):
    ranks.run(getattr(ranks_do, what))


@pytest.mark.parametrize("what", ["sparse", "sparse_data_parallel", "expanded"])
def test_layouts(ranks, what):
    ranks.run(getattr(layout_ranks_do, what))


def test_device_mesh(ranks):
    assert ranks.run(ranks_do.mesh) == [(2.0, ["towline", "towline"])] * SIZE


def test_groups_of_some(ranks):
    assert ranks.run(ranks_do.groups) == [[2.0], [2.0, 2.0], [2.0], []]


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15),
    reason=f"torch {torch.__version__} splits no group of a backend made in Python: 2.15 does",
)
def test_groups_are_split(ranks):
    told = ranks.run(layout_ranks_do.splits)
    assert [one[:4] for one in told] == [[1, 3, 4.0, 45.0], [2, 3, 4.0, 45.0], [0, 1, 2.0, 45.0], [0, 3, 4.0, 45.0]]
    assert [one[4][:30] for one in told] == ["", "", "split_group leaves out rank 2,", "split_group leaves out rank 3,"]


def test_a_groups_timeout_is_in_its_options(ranks):
    assert ranks.run(ranks_do.timeouts) == [40.0] * SIZE


def test_ranks_that_disagree_are_told(ranks):
    told = ranks.run(ranks_do.disagree)
    assert len(set(told)) == 1 and "nothing" not in told[0], told


def test_a_monitored_barrier_names_who_does_not_come(ranks):
    said = "[Rank 0]: Ranks 1, 2, 3 failed to pass monitoredBarrier in 100 ms"
    first, *others = ranks.run(ranks_do.monitored)
    assert first[0] == said and all(said in one[-1] for one in (first, *others)), (first, others)


def test_a_monitored_barrier_names_no_rank_that_is_there(ranks):
    told = ranks.run(ranks_do.monitored_late)
    assert all("[Rank 0]: Rank 3 failed to pass monitoredBarrier in 4000 ms" in one for one in told), told


def test_messages_of_different_types_are_told(ranks):
    said = "rank 0 sends 1 float32 (4 bytes) with tag 0 to rank 1, which receives 1 int32 (4 bytes)"
    first, second, *_ = ranks.run(ranks_do.other_types)
    assert said in first and said in second, (first, second)


def test_a_timeout_is_told(ranks):
    told = ranks.run(ranks_do.late)
    assert all(one and "nothing" not in one for one in told[1:]), told


def test_ended_and_begun_again(ranks, tmp_path):
    assert ranks.run(ranks_do.again, str(tmp_path)) == [[float(SIZE), "towline"]] * SIZE

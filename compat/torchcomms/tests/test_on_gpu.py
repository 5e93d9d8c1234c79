"""Communicators on a GPU that two ranks share, or with GPU_TESTS_ON=all on one each. Needs one, and a torch that sees it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)
pytest.importorskip("torchcomms", reason="compat/torchcomms is not installed")

import test_gpu_model as ranks_do  # noqa: E402
import torchcomms  # noqa: E402
from torchcomms import ReduceOp, hooks, objcol  # noqa: E402


def objects(rank: int, folder: str) -> None:
    comm, other = ranks_do.make("ncclx", rank, folder), 1 - rank
    gathered = [None, None]
    objcol.all_gather_object(comm, gathered, {"rank": rank})
    assert gathered == [{"rank": 0}, {"rank": 1}]
    objcol.gather_object(comm, f"of {rank}", 0, gathered)
    assert rank != 0 or gathered == ["of 0", "of 1"]
    told = ["both", 2] if rank == 1 else [None, None]
    objcol.broadcast_object_list(comm, told, 1)
    assert told == ["both", 2]
    mine = [None]
    objcol.scatter_object_list(comm, 0, mine, ["first", "second"] if rank == 0 else None)
    assert mine == ["first" if rank == 0 else "second"]
    if rank == 0:
        objcol.send_object_list(comm, ["sent"], other)
    else:
        objcol.recv_object_list(comm, mine, other)
        assert mine == ["sent"]
    comm.finalize()


def pooled(rank: int, folder: str) -> None:
    """Tensors of a pool of torchcomms' allocator, in several communicators; a window over one needs no copy."""
    comms = []
    for index in range(3):
        os.makedirs(f"{folder}/{index}", exist_ok=True)
        comms.append(ranks_do.make("ncclx", rank, f"{folder}/{index}"))
    allocator = torchcomms.get_mem_allocator("ncclx")
    pools = [torch.cuda.MemPool(allocator), torch.cuda.MemPool(comms[0].mem_allocator)]
    for comm in comms:
        for pool in pools:
            with torch.cuda.use_mem_pool(pool):
                tensor = torch.full((1 << 20,), rank + 1.0)
            comm.all_reduce(tensor, ReduceOp.SUM, False)
            assert (tensor == 3).all()
    at = tensor.data_ptr()
    window = comms[0].new_window(tensor)
    assert tensor.data_ptr() == at
    comms[0].barrier(False).wait_blocking()
    window.put(torch.full((4,), 7.0), 1 - rank, 0, False)
    torch.cuda.synchronize()
    comms[0].barrier(False).wait_blocking()
    assert (tensor[:4] == 7).all() and (tensor[4:] == 3).all()
    window.tensor_deregister()
    for comm in comms:
        comm.finalize()


def recorded(rank: int, folder: str) -> None:
    """A factor on the GPU counts when the graph is replayed; and replays may be under way when the communicator ends."""
    comm = ranks_do.make("ncclx", rank, folder)
    factor, given = torch.tensor([2.0]), torch.ones(2 * 3000)
    tensor, part = torch.ones(3000), torch.zeros(3000)
    comm.all_reduce(torch.ones(3000), ReduceOp.PREMUL_SUM(factor), False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(tensor, ReduceOp.PREMUL_SUM(factor), False)
        comm.reduce_scatter_single(part, given, ReduceOp.PREMUL_SUM(factor), False)
    for scale in (2.0, 3.0):
        factor.fill_(scale)
        tensor.fill_(1)
        graph.replay()
        torch.cuda.synchronize()
        assert (tensor == 2 * scale).all() and (part == 2 * scale).all() and (given == 1).all()
    for _ in range(20):
        graph.replay()
    comm.finalize()
    torch.cuda.synchronize()


def logged(rank: int, folder: str) -> None:
    comm = ranks_do.make("ncclx", rank, folder)
    log = hooks.clog(output=f"{folder}/log{rank}", events=["ALL"])
    log.register_with_comm(comm)
    tensor = torch.ones(3000)
    comm.all_reduce(tensor, ReduceOp.AVG, False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(tensor, ReduceOp.AVG, False)
    comm.barrier(False).wait_blocking()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    graph.reset()
    comm.finalize()
    with open(f"{folder}/log{rank}") as file:
        issued = [line for line in file if "|Q|" in line]
    assert [line.startswith("G") for line in issued] == [False, True, False], issued


def replayed(rank: int, folder: str) -> None:
    """Calls in one stream follow replays in another without a wait, as with NCCL, and replays follow calls and one another."""
    for name in ("ncclx", "nccl"):
        comm = ranks_do.make(name, rank, folder)
        size = comm.get_size()
        there, back, beside = torch.ones(100_000), torch.ones(100_000), torch.ones(3000)
        comm.all_reduce(torch.ones(3000), ReduceOp.SUM, False)
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(3)]
        graphs = []
        for count in (3000, 100_000):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                comm.all_reduce(beside, ReduceOp.AVG, False)
                comm.broadcast(there[:count], 0, False)
                comm.all_reduce(beside, ReduceOp.AVG, True).wait()
        comm.barrier(False).wait_blocking()
        for turn in range(60):
            with torch.cuda.stream(streams[turn % 3]):
                graphs[turn // 3 % 2].replay()
            with torch.cuda.stream(streams[(turn // 2 + rank) % 3]):
                comm.all_reduce(back, ReduceOp.AVG, turn % 4 == 0)
        comm.barrier(False).wait_blocking()
        torch.cuda.synchronize()
        assert (there == 1).all() and (back == 1).all() and (beside == 1).all(), f"{name}, {size} ranks"
        for graph in graphs:
            graph.reset()
        comm.finalize()


def run(what: Callable[[int, str], None], rank: int, folder: str) -> None:
    gpu = rank % torch.cuda.device_count() if os.environ.get("GPU_TESTS_ON") == "all" else 0
    torch.cuda.set_device(gpu)
    ranks_do.GPU = torch.device("cuda", gpu)
    torch.set_default_device("cuda")
    what(rank, folder)
    torch.cuda.synchronize()


SCENARIOS = [ranks_do.operations, ranks_do.reconfigured, objects, pooled, recorded, logged, replayed]


@pytest.mark.parametrize("what", SCENARIOS, ids=lambda what: what.__name__)
def test_ranks(what, tmp_path):
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run, args=(what, rank, str(tmp_path)), daemon=True) for rank in range(ranks_do.SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * ranks_do.SIZE

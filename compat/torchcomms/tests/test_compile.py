"""Communicators in torch.compile: whole graphs, on ranks that are processes."""

from __future__ import annotations

import multiprocessing
import os
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/torch-cpu makes an environment with it")
pytest.importorskip("torchcomms", reason="compat/torchcomms is not installed")

SIZE = 2


def whole(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


def same_compiled(function, *arguments):
    """Runs it as it is and compiled, on copies; both must give and leave the same."""
    results = []
    for run in (function, whole(function)):
        mine = [one.clone() if isinstance(one, torch.Tensor) else one for one in arguments]
        results.append((run(*mine), [one for one in mine if isinstance(one, torch.Tensor)]))
    torch.testing.assert_close(results[1], results[0])


def every_operation(comm, rank: int) -> None:
    import torchcomms
    from torchcomms import ReduceOp

    other, default = 1 - rank, torchcomms.BatchP2POptions()
    mine = torch.arange(6.0) + 10 * rank

    def reduces(tensor):
        comm.all_reduce(tensor, ReduceOp.SUM, False)
        comm.all_reduce(tensor, ReduceOp.PREMUL_SUM(0.5), async_op=False)
        comm.reduce(tensor, 1, ReduceOp.MAX, False)
        part, again = torch.empty(3), torch.empty(3)
        comm.reduce_scatter_single(part, tensor, ReduceOp.SUM, False)
        comm.reduce_scatter(again, [tensor[:3], tensor[3:]], ReduceOp.SUM, False)
        return part + 1, again

    def moves(tensor):
        comm.broadcast(tensor, 1, False)
        both, one, two = torch.empty(12), torch.empty(6), torch.empty(6)
        comm.all_gather_single(both, tensor, False)
        comm.all_gather([one, two], tensor * 2, False)
        swapped, uneven = torch.empty(6), torch.empty(6)
        comm.all_to_all_single(swapped, tensor + rank, False)
        comm.all_to_all_v_single(uneven, tensor + rank, [3, 3], [3, 3], False)
        parts = [torch.empty(3), torch.empty(3)]
        comm.all_to_all(parts, [swapped[:3], swapped[3:]], False)
        scattered = torch.empty(3)
        comm.scatter(scattered, [tensor[:3], tensor[3:]] if rank == 0 else [], 0, False)
        return both.sum(), one + two, swapped, uneven, parts, scattered

    def messages(tensor):
        received, after = torch.empty(6), torch.empty(6)
        if rank == 0:
            comm.send(tensor, other, False)
            comm.recv(received, other, False)
        else:
            comm.recv(received, other, False)
            comm.send(tensor, other, False)
        comm.barrier(False)
        batch = comm.batch_op_create()
        batch.send(received + 1, other)
        batch.recv(after, other)
        batch.issue(False, default)
        return received, after

    def named(tensor):
        comm.all_reduce(tensor, op=ReduceOp.SUM, async_op=False)
        comm.reduce(op=ReduceOp.MAX, async_op=False, root=1, tensor=tensor)
        comm.broadcast(tensor, 1, False, None, timeout=None)
        both = torch.empty(12)
        comm.all_gather_single(input=tensor, output=both, async_op=False)
        return both

    for what in (reduces, moves, messages, named):
        same_compiled(what, mine)


def works_are_waited_for(comm, rank: int) -> None:
    from torchcomms import ReduceOp

    def step(tensor):
        work = comm.all_reduce(tensor, ReduceOp.AVG, True)
        meanwhile = torch.ones(4) * 2
        work.wait()
        return tensor + meanwhile

    same_compiled(step, torch.full((4,), float(rank)))


def what_nobody_reads_is_not_dropped(comm, rank: int) -> None:
    """And operations keep their order: the other rank has the same, and would disagree."""
    from torchcomms import ReduceOp

    def step(tensor):
        comm.all_reduce(torch.ones(3), ReduceOp.SUM, False)
        comm.broadcast(torch.ones(5), 0, False)
        comm.barrier(False)
        return tensor * 2

    seen = []
    hook = comm.register_pre_hook(lambda name, op_id, arguments: seen.append(name.name))
    assert (whole(step)(torch.ones(2)) == 2).all()
    hook.remove()
    assert seen == ["all_reduce", "broadcast", "barrier"], seen


def hints_and_timeouts_are_refused(comm, rank: int) -> None:
    from torchcomms import ReduceOp

    def step(tensor):
        comm.all_reduce(tensor, ReduceOp.SUM, False, hints={"some": "hint"})

    with pytest.raises(Exception, match="use set_hints|Observed exception"):  # torch 2.7 keeps what was raised to itself
        whole(step)(torch.ones(2))


def inductor(comm, rank: int) -> None:
    from torchcomms import ReduceOp

    def step(tensor):
        comm.all_reduce(tensor, ReduceOp.SUM, False)
        gathered = torch.empty(8)
        comm.all_gather_single(gathered, tensor, False)
        return gathered * 2

    tensor = torch.full((4,), rank + 1.0)
    assert (whole(step, "inductor")(tensor) == 6).all() and (tensor == 3).all()


WHAT = (every_operation, works_are_waited_for, what_nobody_reads_is_not_dropped, hints_and_timeouts_are_refused, inductor)


def run(rank: int, folder: str) -> None:
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE=str(SIZE))
    import torchcomms

    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", SIZE)
    comm = torchcomms.new_comm("gloo", torch.device("cpu"), name="compiled", store=store, timeout=timedelta(seconds=120))
    for what in WHAT:
        print(what.__name__, flush=True)  # for the report of a failure
        what(comm, rank)
    comm.finalize()


def test_communicators_in_whole_graphs(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCOMMS_PATCH_FOR_COMPILE", "1")  # read while ranks import torchcomms
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run, args=(rank, str(tmp_path)), daemon=True) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(300)
    assert [rank.exitcode for rank in ranks] == [0] * SIZE

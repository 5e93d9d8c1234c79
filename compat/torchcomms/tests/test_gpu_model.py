"""Communicators on GPUs, which are made of host memory here: every tensor is on one, in name."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import sys
import threading
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/torch-cpu makes an environment with it")
torchcomms = pytest.importorskip("torchcomms", reason="compat/torchcomms is not installed")
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "bindings/python/tests"))

import forked  # noqa: E402
import gpu_model  # noqa: E402
import torch_gpu_model  # noqa: E402
import towline  # noqa: E402
from towline import _torch_gpu, _torch_group, collectives, gpu_memory  # noqa: E402
from torchcomms import ReduceOp, hooks  # noqa: E402
from torchcomms._comms import WorkStatus  # noqa: E402

pytestmark = pytest.mark.skipif(gpu_model.find() is None, reason="no library of GPU models: build the tests of preset ci")
GPU = torch.device("cuda", 0)
SIZE = 2


def make(name: str, rank: int, folder: str, timeout: timedelta = timedelta(seconds=60), **options):
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE=str(SIZE))
    store = torch.distributed.FileStore(f"{folder}/{name}", SIZE)
    return torchcomms.new_comm(name, GPU, name=f"a-{name}", store=store, timeout=timeout, **options)


def operations(rank: int, folder: str) -> None:
    other = 1 - rank
    for name in ("ncclx", "nccl", "towline"):
        comm = make(name, rank, folder)
        assert (comm.get_backend(), comm.get_size(), comm.get_device()) == (name, SIZE, GPU)
        tensor = torch.full((3000,), rank + 1.0)
        comm.all_reduce(tensor, ReduceOp.SUM, False)
        assert (tensor == 3).all()
        comm.all_reduce(tensor, ReduceOp.PREMUL_SUM(2.0), False)
        assert (tensor == 12).all()
        work = comm.all_gather_single(gathered := torch.zeros(4), torch.full((2,), float(rank)), True)
        work.wait()
        assert gathered.tolist() == [0, 0, 1, 1] and work.status == WorkStatus.COMPLETED
        batch = comm.batch_op_create()
        received = torch.zeros(200_000)
        batch.send(torch.full((200_000,), float(rank)), other)
        batch.recv(received, other)
        batch.issue(True).wait_blocking()
        assert (received == other).all()
        part = comm.split([0, 1], "again")
        part.broadcast(told := torch.tensor([float(rank)]), 1, False)
        assert told.item() == 1
        comm.barrier(False).wait_blocking()
        part.finalize()
        comm.finalize()


def in_groups(rank: int, folder: str) -> None:
    from torchcomms._comms import _BackendWrapper

    comm = make("ncclx", rank, folder)
    wrapper = _BackendWrapper(comm)
    wrapper.allreduce([tensor := torch.ones(3000)]).wait()
    assert (tensor == 2).all()
    wide = torch.zeros(50, 2)
    wrapper.start_coalescing()
    wrapper.send([torch.full((50,), float(rank))], 1 - rank)
    wrapper.recv([wide[:, 1]], 1 - rank)
    wrapper.end_coalescing().wait()
    assert (wide[:, 1] == 1 - rank).all() and not wide[:, 0].any()
    wrapper.start_coalescing()
    wrapper.allreduce_coalesced(tensors := [torch.ones(1 << 20), torch.ones(3)])
    wrapper.end_coalescing().wait()
    assert all((tensor == 2).all() for tensor in tensors)
    normalises(wrapper)
    wrapper.barrier().wait()
    comm.finalize()


def normalises(group) -> None:
    """The fused operation of a group that has none takes the steps one by one."""
    from unittest import mock

    from towline import torch_norm

    summed = mock.patch.object(torch_norm.dist, "all_reduce", lambda tensor, group: group.allreduce([tensor]).wait())
    with summed, mock.patch.object(torch_norm.c10d, "_resolve_process_group", lambda name: group):
        got = torch_norm._all_reduce_rms_norm(torch.full((2, 8), 3.0), residual := torch.ones(2, 8), None, 0.0, "")
    assert (residual == 7).all() and (got == 1).all()


def windows(rank: int, folder: str) -> None:
    import ctypes

    comm, gpu, other = make("ncclx", rank, folder), _torch_gpu.gpu, 1 - rank
    address = gpu.model.allocate(4000)
    pooled = torch.frombuffer((ctypes.c_uint8 * 4000).from_address(address), dtype=torch.float32)
    own = torch.zeros(1000)
    for tensor, stays in ((pooled, True), (own, False)):  # what can't be shared is copied
        before = tensor.data_ptr()
        window = comm.new_window(tensor)
        assert (tensor.data_ptr() == before) is stays and tensor.numel() == 1000
        window.put(torch.full((10,), rank + 1.0), other, 5, True).wait()
        window.signal(other, True)
        work = window.wait_signal(other, True, timeout=timedelta(seconds=60))
        work.wait_blocking()
        assert tensor[5:15].tolist() == [other + 1.0] * 10 and tensor[:5].sum() == 0
        assert window.map_remote_tensor(other)[5] == rank + 1
        with pytest.raises(RuntimeError, match="no hint 'fast'"):
            window.signal(other, False, hints={"fast": "yes"})
        table = gpu_memory.Table(window._window)
        assert (table.rank, table.size) == (rank, SIZE) and table.memory[rank] == tensor.data_ptr()
        handle = window.get_device_window(signal_count=8)
        assert ctypes.string_at(handle, 8) == table.memory[0].to_bytes(8, "little")
        with pytest.raises(RuntimeError, match="63 signals"):
            window.get_device_window(signal_count=64)
        buffer = window.register_local_buffer(own)
        window.deregister_local_buffer(buffer)
        with pytest.raises(RuntimeError, match="was not registered"):
            window.deregister_local_buffer(buffer)
        comm.barrier(False).wait_blocking()
        window.tensor_deregister()
    comm.finalize()


def deregistered_early(rank: int, folder: str) -> None:
    """The stream still has to put when its window is deregistered."""
    import ctypes

    comm, gpu, other = make("ncclx", rank, folder), _torch_gpu.gpu, 1 - rank
    own = torch.frombuffer((ctypes.c_uint8 * 4000).from_address(gpu.model.allocate(4000)), dtype=torch.float32)
    window = comm.new_window(own)
    gpu.settles = False
    drain = gpu.synchronize

    def synchronize(index: int) -> None:
        gpu.model.hold(gpu.current, False)
        drain(index)

    gpu.synchronize = synchronize
    given = torch.full((10,), rank + 1.0)
    gpu.model.hold(gpu.current, True)
    window.put(given, other, 5, True)
    window.tensor_deregister()
    gpu.synchronize(0)
    assert own[5:15].tolist() == [other + 1.0] * 10
    comm.finalize()


def reconfigured(rank: int, folder: str) -> None:
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE=str(SIZE))
    store = torch.distributed.FileStore(f"{folder}/handles", SIZE)
    comm = torchcomms.new_comm("ncclx", GPU, name="again", enable_reconfigure=True)
    store.set(str(rank), comm.get_init_handle())
    handles = [store.get(str(each)).decode() for each in range(SIZE)]
    for uuid in range(2):
        comm.reconfigure(uuid, handles, timedelta(seconds=60)).wait()
        comm.all_reduce(tensor := torch.ones(3000), ReduceOp.SUM, False)
        assert (tensor == SIZE).all()
    comm.abort()
    assert comm.is_aborted()
    comm.finalize()


def hooked(rank: int, folder: str) -> None:
    import json

    comm = make("ncclx", rank, folder)
    recorder, checker = hooks.FlightRecorderHook(max_entries=10), hooks.NanCheckHook()
    log = hooks.clog(output=f"{folder}/log{rank}", events=["ALL"])
    for hook in (recorder, checker, log):
        hook.register_with_comm(comm)
    comm.all_reduce(torch.ones(5000), ReduceOp.SUM, False)
    comm.all_reduce(torch.ones(5000), ReduceOp.SUM, True).wait_blocking()
    batch, received = comm.batch_op_create(), torch.zeros(100)
    batch.send(torch.ones(100), 1 - rank)
    batch.recv(received, 1 - rank)
    batch.issue(True).wait_blocking()
    assert (received == 1).all()
    with pytest.raises(RuntimeError, match="NaN in the input of all_reduce"):
        comm.all_reduce(torch.full((8,), float("nan")), ReduceOp.SUM, False)
    end = time.monotonic() + 60
    while True:  # the end is written down by another thread
        entries = json.loads(recorder.dump_json())["entries"]
        if [one["state"] for one in entries[:3]] == ["completed"] * 3 or time.monotonic() > end:
            break
    assert [one["profiling_name"] for one in entries[:3]] == ["ncclx:all_reduce"] * 2 + ["ncclx:batch_op_issue"]
    assert [one["state"] for one in entries[:3]] == ["completed"] * 3, entries
    comm.finalize()
    with open(f"{folder}/log{rank}") as file:
        lines = file.read().splitlines()
    assert sum("|Q|work_id=" in line for line in lines) >= 3
    signature = next(line for line in lines if "|sig|batch_op_issue|" in line)
    assert "|num_ops=2|async_op=t|" in signature
    number = signature.split("|")[0]
    assert sorted(line.split("|")[1] for line in lines if line.startswith(f"{number}|")) == ["E", "Q", "S", "W", "sig"], lines


def logged(rank: int, folder: str) -> None:
    """Operations recorded in a graph are logged with the graph's number. They start and end once for each replay, not when they are recorded."""
    comm, gpu = make("ncclx", rank, folder), _torch_gpu.gpu
    log = hooks.clog(output=f"{folder}/log{rank}", events=["ALL"])
    log.register_with_comm(comm)
    tensor = torch.ones(5000)
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    gpu.model.record(gpu.current)
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    comm.all_reduce(tensor, ReduceOp.SUM, True).wait()
    graph = gpu.model.end_record(gpu.current)
    comm.barrier(False).wait_blocking()
    for _ in range(3):
        gpu.model.replay(graph, gpu.current)
    gpu.model.drain(gpu.current)
    assert (tensor == SIZE**7).all()
    comm.finalize()
    with open(f"{folder}/log{rank}") as file:
        lines = file.read().splitlines()
    issued = [line for line in lines if "|Q|" in line]
    assert [line.startswith("G") for line in issued] == [False, True, True, False], issued
    assert len({line.split("|")[0] for line in issued[1:3]}) == 1 and issued[1].split("|")[1] == issued[0].split("|")[0]
    assert [sum(f"|{event}|" in line for line in lines) for event in "SEW"] == [2 + 6, 2 + 6, 1], lines
    graph = issued[1].split("|")[0]
    numbers = [line.split("|")[1] for line in issued[1:3]]  # of an operation in the stream and one beside it
    for number in numbers:
        told = ["|".join(line.split("|")[:4]) for line in lines if line.startswith(f"{graph}|R") and f"|{number}|" in line]
        assert told == [f"{graph}|R{replay}|{number}|{event}" for replay in (1, 2, 3) for event in "SE"], lines
    assert not any(line.startswith("WARN") for line in lines), lines


def logged_batch(rank: int, folder: str) -> None:
    """A replay ends a batch with the last of its messages, and what is issued next does not count."""
    comm, gpu, store = make("ncclx", rank, folder), _torch_gpu.gpu, torch.distributed.FileStore(f"{folder}/steps", SIZE)
    gpu.settles = False
    gifts = [torch.full((5000,), float(each)) for each in (1, 2)]
    if rank == 1:
        for replay in range(2):
            for each, gift in enumerate(gifts):
                comm.send(gift, 0, True).wait_blocking()
                store.wait([f"{replay} {each}"])
        comm.barrier(False).wait_blocking()
        comm.finalize()
        return
    log = hooks.clog(output=f"{folder}/log", events=["ALL"])
    log.register_with_comm(comm)
    received = [torch.zeros(5000) for _ in gifts]
    gpu.model.record(gpu.current)
    batch = comm.batch_op_create()
    for each in received:
        batch.recv(each, 1)
    batch.issue(True).wait()
    graph = gpu.model.end_record(gpu.current)

    def lines() -> list[str]:
        with open(f"{folder}/log") as file:
            told = [line.split("|") for line in file if line.startswith("G") and "|R" in line]
        return [f"{fields[1]} {fields[3]}" for fields in told]

    ended = threading.Semaphore(0)
    native = comm.get_backend_impl().use()
    after_the_log = native.hook("replay", lambda told: ended.release() if told["status"] == towline.Status.OK else None)
    for replay, before in enumerate(([], ["R1 S", "R1 E"])):
        gpu.model.replay(graph, gpu.current)
        assert ended.acquire(timeout=60)  # the first message
        assert lines() == [*before, f"R{replay + 1} S"]
        store.set(f"{replay} 0", "")
        assert ended.acquire(timeout=60)
        assert lines() == [*before, f"R{replay + 1} S", f"R{replay + 1} E"]
        store.set(f"{replay} 1", "")
    gpu.model.drain(gpu.current)
    assert all((got == gift).all() for got, gift in zip(received, gifts))
    comm.barrier(False).wait_blocking()
    after_the_log.remove()
    comm.finalize()


def logged_again(rank: int, folder: str) -> None:
    """Replays are logged after a reconfiguration, also where the communicator before did not tell of them."""
    from unittest import mock

    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE=str(SIZE))
    store, gpu = torch.distributed.FileStore(f"{folder}/handles", SIZE), _torch_gpu.gpu
    comm = torchcomms.new_comm("ncclx", GPU, name="again", enable_reconfigure=True)
    store.set(str(rank), comm.get_init_handle())
    handles = [store.get(str(each)).decode() for each in range(SIZE)]
    log = hooks.clog(output=f"{folder}/log{rank}", events=["ALL"])
    hook = collectives.Communicator.hook

    def without_replays(communicator, kind, function):
        if kind == "replay":
            raise towline.Unsupported("no replays")
        return hook(communicator, kind, function)

    for uuid, told in enumerate((without_replays, hook)):
        comm.reconfigure(uuid, handles, timedelta(seconds=60)).wait()
        if uuid == 0:
            log.register_with_comm(comm)
        with mock.patch.object(collectives.Communicator, "hook", told):
            gpu.model.record(gpu.current)
            comm.all_reduce(tensor := torch.ones(3000), ReduceOp.SUM, False)
            graph = gpu.model.end_record(gpu.current)
        comm.barrier(False).wait_blocking()
        gpu.model.replay(graph, gpu.current)
        gpu.model.drain(gpu.current)
        assert (tensor == SIZE).all()
    comm.finalize()
    with open(f"{folder}/log{rank}") as file:
        told = [line.split("|")[3] for line in file if line.startswith("G") and "|R" in line]
    assert told == ["S", "E"]


def replayed(rank: int, folder: str) -> None:
    """Calls follow replays in other streams. On rank 0 they would come first."""
    for name in ("ncclx", "nccl"):
        comm, gpu = make(name, rank, folder), _torch_gpu.gpu
        first, second = gpu.current, gpu.model.stream()
        small, large = torch.ones(1000), torch.ones(90_000)
        gpu.model.record(first)
        comm.all_reduce(small, ReduceOp.SUM, False)
        graph = gpu.model.end_record(first)
        gpu.settles = False
        for _ in range(20):
            gpu.model.hold(first, rank == 0)
            gpu.model.replay(graph, first)
            gpu.current = second
            comm.all_reduce(large, ReduceOp.AVG, False)
            gpu.current = first
            gpu.model.hold(first, False)
            for stream in (first, second):
                gpu.model.drain(stream)
        gpu.settles = True
        comm.barrier(False).wait_blocking()
        assert (small == SIZE**20).all() and (large == 1).all()
        comm.finalize()


def placed(rank: int, folder: str) -> None:
    """Without a GPU's number ranks are dealt out to GPUs, and the thread uses its rank's."""
    from unittest import mock

    gpu, used = _torch_gpu.gpu, []
    os.environ.update(TORCHCOMM_RANK=str(rank + 4), TORCHCOMM_SIZE="6")
    for device, index in (("cuda", (rank + 4) % 3), ("cuda:0", 0)):
        with mock.patch.object(gpu, "count", lambda: 3), mock.patch.object(gpu, "use", used.append):
            comm = torchcomms.new_comm("ncclx", torch.device(device), name="placed", enable_reconfigure=True)
        assert comm.get_device() == torch.device("cuda", index) and used.pop() == index


def beside(rank: int, folder: str) -> None:
    comm, gpu = make("ncclx", rank, folder), _torch_gpu.gpu
    gpu.settles = False
    gpu.model.hold(gpu.current, True)
    tensor = torch.ones(5000)
    work = comm.all_reduce(tensor, ReduceOp.SUM, True)
    work.wait()  # orders, and does not hold up the host
    assert work.status == WorkStatus.INPROGRESS and not work.is_completed()
    gpu.model.hold(gpu.current, False)
    work.wait_blocking()
    assert work.is_completed() and (tensor == SIZE).all()
    comm.finalize()


def late(rank: int, folder: str) -> None:
    """A rank leaves an operation out. The call of the other one only enqueues, and does not raise; whoever waits on the host is told."""
    comm = make("ncclx", rank, folder, abort_process_on_timeout_or_error=False)
    store = torch.distributed.FileStore(f"{folder}/over", SIZE)
    comm.barrier(False).wait_blocking()
    if rank == 0:
        store.wait(["over"])
    else:
        _torch_gpu.gpu.settles = False
        work = comm.all_reduce(torch.ones(8), ReduceOp.SUM, False, timeout=timedelta(milliseconds=300))
        work.wait()
        for again in (work.wait_blocking, comm.barrier(True).wait_blocking, work.wait_blocking):
            with pytest.raises(RuntimeError, match="rank 1 timed out in all_reduce #1 of 8 float32 .*: rank 0 did not come"):
                again()
        store.set("over", "")
        with pytest.raises(RuntimeError, match="a-ncclx is closed, but it failed before: rank 1 timed out in all_reduce #1"):
            comm.finalize()
    comm.finalize()


def late_unasked(rank: int, folder: str) -> None:
    """Nobody asks about an operation that fails: finalize() tells, as torchcomms' does, whatever its stream. After abort() it does not."""
    gpu = _torch_gpu.gpu
    gpu.settles = False
    store = torch.distributed.FileStore(f"{folder}/over", SIZE)
    streams = (gpu.current, gpu.model.stream())
    for number, (stream, aborts) in enumerate(((0, False), (1, False), (0, True))):
        os.makedirs(f"{folder}/{number}", exist_ok=True)
        comm = make("ncclx", rank, f"{folder}/{number}", abort_process_on_timeout_or_error=False)
        comm.barrier(False).wait_blocking()
        if rank == 0:
            store.wait([str(number)])
            comm.finalize()  # its own operations went well
            continue
        gpu.current = streams[stream]
        comm.all_reduce(torch.ones(8), ReduceOp.SUM, False, timeout=timedelta(milliseconds=300))
        gpu.current = streams[0]
        if aborts:
            comm.abort()
        else:
            with pytest.raises(RuntimeError, match="a-ncclx is closed, .*: rank 1 timed out in all_reduce #1 .*: rank 0 did not come"):
                comm.finalize()
        comm.finalize()
        store.set(str(number), "")


def ended_in_a_child(rank: int, folder: str) -> None:
    """What a forked child inherits it can end, and nothing happens to the parent's."""
    comm = make("ncclx", rank, folder)
    child = os.fork()
    if child == 0:
        comm.finalize()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    comm.all_reduce(tensor := torch.ones(3000), ReduceOp.SUM, False)
    comm.finalize()
    assert (tensor == SIZE).all()


def late_and_reconfigured(rank: int, folder: str) -> None:
    """A communicator that can be reconfigured outlives a timeout, though failures end the process by default."""
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE=str(SIZE))
    store = torch.distributed.FileStore(f"{folder}/handles", SIZE)
    comm = torchcomms.new_comm("ncclx", GPU, name="again", enable_reconfigure=True)
    store.set(str(rank), comm.get_init_handle())
    comm.reconfigure(0, [store.get(str(each)).decode() for each in range(SIZE)], timedelta(seconds=60)).wait()
    comm.barrier(False).wait_blocking()
    if rank == 0:
        store.wait(["over"])
    else:
        _torch_gpu.gpu.settles = False
        work = comm.all_reduce(torch.ones(8), ReduceOp.SUM, False, timeout=timedelta(milliseconds=300))
        with pytest.raises(RuntimeError, match="rank 0 did not come"):
            work.wait_blocking()
        assert comm.is_aborted()
        comm.reconfigure(1, [comm.get_init_handle()], timedelta(seconds=60)).wait()
        assert not comm.is_aborted() and comm.get_size() == 1
        comm.all_reduce(torch.ones(8), ReduceOp.SUM, False).wait_blocking()
        store.set("over", "")
    comm.finalize()


def run(what, rank: int, folder: str) -> None:
    torch_gpu_model.install()
    what(rank, folder)


@pytest.mark.parametrize("what", [operations, beside, in_groups, windows, deregistered_early, reconfigured, hooked, logged, logged_batch, logged_again, late, late_unasked, late_and_reconfigured, ended_in_a_child, replayed, placed], ids=lambda what: what.__name__)
def test_ranks(what, tmp_path):
    if what is in_groups and not _torch_group.TAKES_BACKENDS:
        pytest.skip(f"torch {torch.__version__} takes no backend made in Python: 2.14 does")
    ranks = [forked.process(run, what, rank, str(tmp_path)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * SIZE


def alone(rank: int, folder: str, over) -> None:
    torch_gpu_model.install()
    _torch_gpu.gpu.settles = False
    comm = make("ncclx", rank, folder)
    replay_a_barrier(comm)
    if rank == 1:
        os.dup2(os.open(f"{folder}/words", os.O_CREAT | os.O_WRONLY), 2)
        comm.all_reduce(torch.ones(8), ReduceOp.SUM, False, timeout=timedelta(milliseconds=300))  # it is only issued
    over.poll(60)
    os._exit(1)


def alone_in_a_graph(rank: int, folder: str, over) -> None:
    torch_gpu_model.install()
    comm, gpu = make("ncclx", rank, folder), _torch_gpu.gpu
    graph = replay_a_barrier(comm)
    if rank == 1:
        os.dup2(os.open(f"{folder}/words", os.O_CREAT | os.O_WRONLY), 2)
        gpu.model.replay(graph, gpu.current)
    over.poll(60)
    os._exit(1)


def replay_a_barrier(comm) -> int:
    """Records one, and replays it once on all ranks. Returns the graph."""
    gpu = _torch_gpu.gpu
    gpu.model.record(gpu.current)
    comm.barrier(False, timeout=timedelta(milliseconds=1000))
    graph = gpu.model.end_record(gpu.current)
    comm.barrier(False).wait_blocking()
    gpu.model.replay(graph, gpu.current)
    gpu.model.drain(gpu.current)
    comm.barrier(False).wait_blocking()
    return graph


def left(rank: int, folder: str, over) -> None:
    torch_gpu_model.install()
    comm = make("ncclx", rank, folder)
    comm.barrier(False).wait_blocking()
    if rank == 0:
        os._exit(0)
    while not comm.is_aborted() and not over.poll(0.01):
        pass
    os._exit(7 if comm.is_aborted() else 1)


def start(what, folder) -> list:
    over, end = forked.context.Pipe(duplex=False)  # readable when the test is over. An event would hang where a process that waits is ended
    ranks = [forked.process(what, rank, str(folder), over) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    ranks[1].join(60)
    end.close()
    ranks[0].join(60)
    return ranks


def test_a_timeout_on_the_gpu_ends_the_process(tmp_path):
    assert start(alone, tmp_path)[1].exitcode == -signal.SIGABRT
    words = (tmp_path / "words").read_text()
    assert "rank 0 did not come. Aborting process due to timeout" in words and "Graph monitor" not in words


def test_a_timeout_of_a_replay_ends_the_process_with_the_words_of_torchcomms_monitor(tmp_path):
    assert start(alone_in_a_graph, tmp_path)[1].exitcode == -signal.SIGABRT
    words = (tmp_path / "words").read_text()
    assert re.search(r"^Graph monitor: collective TIMED OUT for graph [1-9]\d*: barrier #0: rank 0 did not come$", words, re.MULTILINE), words
    assert "rank 0 did not come. Aborting process due to timeout" in words


def test_a_rank_that_goes_without_a_word_does_not(tmp_path):
    assert start(left, tmp_path)[1].exitcode == 7

"""Operations on streams, on GPUs which are made of host memory here."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import threading
import time

import numpy as np
import pytest

import gpu_model
import towline
from towline import collectives

pytestmark = pytest.mark.skipif(gpu_model.find() is None, reason="no library of GPU models: build the tests of preset ci")


@pytest.fixture(scope="module")
def model():
    return gpu_model.Model()


@pytest.fixture
def alone(model, tmp_path):
    """A communicator of one rank."""
    with collectives.Communicator(
        rank=0, size=1, bootstrap=f"file:{tmp_path}", backend=gpu_model.NAME, timeout=20
    ) as made:
        yield made


class TorchStream:
    def __init__(self, address: int) -> None:
        self.cuda_stream = address


class CupyStream:
    def __init__(self, address: int) -> None:
        self.ptr = address


class AnyStream:
    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


class OnGpu:
    """An array as CuPy has them."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.size, self.shape = array, array.dtype, array.size, array.shape
        self.__cuda_array_interface__ = {"data": (array.ctypes.data, False), "strides": None}


@pytest.mark.parametrize("kind", [int, TorchStream, CupyStream, AnyStream])
def test_operations_go_into_any_stream(model, alone, kind):
    address = model.stream()
    stream = kind(address)
    source, target = np.arange(5000, dtype=np.float32), np.zeros(5000, np.float32)
    model.hold(address, True)
    assert alone.all_reduce(OnGpu(source), output=OnGpu(target), stream=stream) is None
    work = alone.all_gather(source, target, async_op=True, stream=stream)
    work.wait_on(stream)
    assert not work.done and not target.any()
    model.hold(address, False)
    model.drain(address)
    assert work.done and work.poll() == towline.Status.OK
    assert (target == source).all()


def test_what_is_no_stream_is_refused(alone):
    with pytest.raises(towline.InvalidArgument, match="stream: a torch or CuPy stream"):
        alone.barrier(stream="the first")


@pytest.mark.parametrize("async_op", [False, True])
def test_a_broken_communicator_says_why_and_no_more(model, alone, async_op):
    alone.abort("enough")
    with pytest.raises(towline.Cancelled, match=f"^rank 0 aborted communicator {alone.name}: enough$"):
        alone.barrier(async_op=async_op, stream=model.stream())


def test_arrays_on_gpus_need_a_stream(alone):
    with pytest.raises(towline.Unsupported, match="takes it with stream="):
        alone.all_reduce(OnGpu(np.zeros(3, np.float32)))


def test_works_that_are_in_no_stream_order_none(model, alone):
    work = alone.barrier(async_op=True)
    with pytest.raises(towline.Unsupported, match="not on a stream"):
        work.wait_on(model.stream())
    work.wait()


def test_backends_without_streams_say_so(model, tmp_path):
    with collectives.Communicator(rank=0, size=1, bootstrap=f"file:{tmp_path}") as made:
        with pytest.raises(towline.Unsupported, match="no operations on streams"):
            made.barrier(stream=model.stream())


def test_ranks_in_threads_exchange_on_streams(model, tmp_path):
    told = []

    def rank(number: int) -> None:
        with collectives.Communicator(
            rank=number, size=2, bootstrap=f"file:{tmp_path}", backend=gpu_model.NAME, timeout=20
        ) as made:
            stream = model.stream()
            mine = np.full(100_000, number + 1.0, np.float32)
            works = [made.all_reduce(mine, async_op=True, stream=stream)]
            works += [made.send(mine, 1 - number, async_op=True, stream=stream)]
            theirs = np.zeros_like(mine)
            works += [made.recv(theirs, 1 - number, async_op=True, stream=stream)]
            for work in works:
                work.wait_on(stream)
            model.drain(stream)
            told.append((mine[0], mine.min() == mine.max(), all(work.done for work in works)))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [(3.0, True, True)] * 2


@contextlib.contextmanager
def _processes(body, count: int, folder):
    """Pipes to `count` ranks and their processes, once all are ready. None is left: an interpreter would wait at its
    end for one that is stopped."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for rank in range(count):
            near, far = context.Pipe()
            processes.append(context.Process(target=body, args=(rank, str(folder), far), daemon=True))
            processes[-1].start()
            pipes.append(near)
        for pipe in pipes:
            assert pipe.poll(60) and pipe.recv() == "ready"
        yield pipes, processes
    finally:
        for process in processes:
            process.kill()


def _exchange(rank: int, folder: str, pipe) -> None:
    model = gpu_model.Model()
    with collectives.Communicator(
        rank=rank, size=2, bootstrap=f"file:{folder}", backend=gpu_model.NAME, timeout=60
    ) as made:
        stream = model.stream()
        array = np.ones(100_000, np.float32)
        made.all_reduce(array, stream=stream)
        model.drain(stream)
        assert array[0] == 2
        pipe.send("ready")
        pipe.recv()
        try:
            work = made.all_reduce(array, async_op=True, stream=stream, timeout=3)
            work.wait()
            pipe.send("nothing")
        except towline.Error as error:
            model.drain(stream)  # which is not held up
            pipe.send(str(error))


@pytest.mark.parametrize(
    "how, said", [(signal.SIGKILL, "rank 1's process is gone"), (signal.SIGSTOP, "rank 1 did not come")], ids=["killed", "stopped"]
)
def test_a_process_that_dies_or_stops_is_named(how, said, tmp_path):
    """Memory that processes share: each keeps what it has mapped, also when others leave."""
    with _processes(_exchange, 2, tmp_path) as (pipes, ranks):
        os.kill(ranks[1].pid, how)
        pipes[0].send("go on")
        assert pipes[0].poll(60) and said in pipes[0].recv()
        ranks[1].kill()
        for rank in ranks:
            rank.join(60)
        assert ranks[0].exitcode == 0


def _exchange_later(rank: int, folder: str, pipe) -> None:
    model = gpu_model.Model()
    with collectives.Communicator(
        rank=rank, size=2, bootstrap=f"file:{folder}", backend=gpu_model.NAME, timeout=60
    ) as made:
        stream = model.stream()
        array = np.ones(100_000, np.float32)
        made.all_reduce(array, stream=stream)
        pipe.send("ready")
        pipe.recv()
        works = [made.all_reduce(array, async_op=True, stream=stream) for _ in range(3)]
        for work in works:
            pipe.send("issued" if not work.done else "over")
        for work in works:
            work.wait()
        made.barrier()
        pipe.send((float(array.min()), float(array.max())))


def test_a_process_that_stops_and_goes_on_in_time_is_only_late(tmp_path):
    with _processes(_exchange_later, 2, tmp_path) as (pipes, ranks):
        os.kill(ranks[1].pid, signal.SIGSTOP)
        pipes[0].send("go on")
        told = [pipes[0].recv() for _ in range(3) if pipes[0].poll(60)]
        assert told == ["issued"] * 3  # it waits for the other
        os.kill(ranks[1].pid, signal.SIGCONT)
        pipes[1].send("go on")
        for pipe in pipes:
            while (last := pipe.recv() if pipe.poll(60) else "nothing") in ("issued", "over"):
                pass
            assert last == (16, 16)
        for rank in ranks:
            rank.join(60)
        assert [rank.exitcode for rank in ranks] == [0, 0]


def _exchange_between_hosts(rank: int, folder: str, pipe) -> None:
    model = gpu_model.Model()
    with collectives.Communicator(
        rank=rank,
        size=4,
        bootstrap=f"file:{folder}",
        backend=gpu_model.NAME,
        timeout=60,
        config=f'collectives.host = "{"aabb"[rank]}"\n',
    ) as made:
        stream = model.stream()
        array = np.ones(100_000, np.float32)
        made.all_reduce(array, stream=stream)
        model.drain(stream)
        assert array[0] == 4
        pipe.send("ready")
        while pipe.recv() == "go on":
            began = time.monotonic()
            try:
                made.all_reduce(array, async_op=True, stream=stream, timeout=HOSTS_TIMEOUT_S).wait()
                pipe.send(("nothing", 0))
            except towline.Error as error:
                model.drain(stream)  # which is not held up
                pipe.send((str(error), time.monotonic() - began))


HOSTS_TIMEOUT_S = 3  # of the operation: to meet takes longer beside other work


@pytest.mark.parametrize(
    "how, ranks, said",
    [
        (signal.SIGKILL, [3], "rank 3"),
        (signal.SIGKILL, [2, 3], "rank (2|3)"),
        (signal.SIGSTOP, [3], "rank 3"),
        (signal.SIGSTOP, [2, 3], "rank (2|3)"),
    ],
    ids=["a rank is killed", "a host is killed", "a rank is stopped", "a host is stopped"],
)
def test_a_rank_of_another_host_that_dies_or_stops_is_named_on_every_host(how, ranks, said, tmp_path):
    """The others wait for it in an operation already, and all end within the operation's time."""
    others = [rank for rank in range(4) if rank not in ranks]
    with _processes(_exchange_between_hosts, 4, tmp_path) as (pipes, processes):
        for rank in others:
            pipes[rank].send("go on")
        for rank in ranks:
            os.kill(processes[rank].pid, how)
        for rank in others:
            assert pipes[rank].poll(60)
            text, seconds = pipes[rank].recv()
            assert re.search(said, text), text
            assert seconds < (2 if how == signal.SIGKILL else HOSTS_TIMEOUT_S + 3), (seconds, text)
            pipes[rank].send("end")
        for rank in ranks:
            processes[rank].kill()
        for process in processes:
            process.join(60)
        assert all(processes[rank].exitcode == 0 for rank in others)

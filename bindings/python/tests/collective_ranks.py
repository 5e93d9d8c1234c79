"""Processes that are the ranks of a communicator, and what they are asked to do."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import traceback

import numpy as np

import forked
import towline
from towline import collectives

TIMEOUT = 60.0


def open_communicator(rank: int, size: int, folder: str, **options) -> collectives.Communicator:
    options.setdefault("timeout", TIMEOUT)
    return collectives.Communicator(rank=rank, size=size, bootstrap=f"file:{folder}", **options)


def serve(pipe, rank: int, size: int, folder: str) -> None:
    """Forms the world, then does what it is asked to."""
    with open_communicator(rank, size, folder) as world:
        obey(pipe, world)


def obey(pipe, world) -> None:
    """Calls functions of any module with the world until told to stop."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    while (command := pipe.recv()) is not None:
        function, arguments = command
        try:
            pipe.send((True, function(world, *arguments)))
        except BaseException as error:  # given to the caller
            pipe.send((False, (type(error).__name__, str(error), traceback.format_exc())))


class Failed(Exception):
    """A rank raised; `kind` is the name of the exception's type."""

    def __init__(self, rank: int, kind: str, text: str, trace: str) -> None:
        super().__init__(f"rank {rank}: {trace}")
        self.kind, self.text = kind, text


class Ranks:
    def __init__(self, size: int, folder: str, serve=serve) -> None:
        self.size = size
        self.stuck: str | None = None
        self.pipes, self.processes = [], []
        for rank in range(size):
            pipe, far_end = forked.context.Pipe()
            process = forked.process(serve, far_end, rank, size, folder)
            process.start()
            far_end.close()
            self.pipes.append(pipe)
            self.processes.append(process)

    def begin(self, function, *arguments, ranks=None) -> None:
        assert self.stuck is None, self.stuck
        for rank in ranks if ranks is not None else range(self.size):
            self.pipes[rank].send((function, arguments))

    def outcomes(self, ranks=None) -> list:
        """(True, result) or (False, (kind, text, traceback)) of every rank."""
        told = []
        for rank in ranks if ranks is not None else range(self.size):
            if not self.pipes[rank].poll(TIMEOUT):
                self._end(f"rank {rank} did not answer within {TIMEOUT:.0f} s, and all ranks were ended")
            told.append(self.pipes[rank].recv())
        return told

    def _end(self, why: str) -> None:
        """Ends all ranks, which say where they are: what they answer later would be taken for the answer to something else."""
        self.stuck = why
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        for process in self.processes:
            process.join(1)
            process.kill()
        raise AssertionError(why)

    def run(self, function, *arguments) -> list:
        """Has every rank call function(world, *arguments); their results."""
        self.begin(function, *arguments)
        results = []
        for rank, (fine, result) in enumerate(self.outcomes()):
            if not fine:
                raise Failed(rank, *result)
            results.append(result)
        return results

    def stop(self) -> list:
        for pipe in self.pipes:
            with contextlib.suppress(ConnectionError):  # of one that has ended
                pipe.send(None)
        for process in self.processes:
            process.join(TIMEOUT)
        return [process.exitcode for process in self.processes]


# ---- what ranks do; each returns what the test looks at


def values(rank: int, count: int = 5, dtype: str = "float32") -> np.ndarray:
    return (np.arange(count) % 7 + 1 + rank).astype(dtype)


def reductions(world, dtype: str, count: int) -> None:
    everyone = [values(rank, count, dtype) for rank in range(world.size)]
    expected = {
        "sum": np.sum(everyone, axis=0),
        "product": np.prod(everyone, axis=0),
        "min": np.min(everyone, axis=0),
        "max": np.max(everyone, axis=0),
    }
    for op, result in expected.items():
        mine = values(world.rank, count, dtype)
        assert world.all_reduce(mine, op) is None
        np.testing.assert_array_equal(mine, result.astype(dtype), err_msg=op)
    mine, output = values(world.rank, count, dtype), np.zeros(count, dtype)
    world.all_reduce(mine, collectives.ReduceOp.MAX, output=output)
    np.testing.assert_array_equal(mine, values(world.rank, count, dtype))
    np.testing.assert_array_equal(output, expected["max"])


def special_reductions(world) -> None:
    mine = values(world.rank, 9, "float64")
    world.all_reduce(mine, "avg")
    np.testing.assert_allclose(mine, np.mean([values(rank, 9) for rank in range(world.size)], axis=0))
    mine = values(world.rank, 9, "float64")
    world.all_reduce(mine, "premul_sum", factor=world.rank + 0.5)
    np.testing.assert_allclose(mine, sum((rank + 0.5) * values(rank, 9, "float64") for rank in range(world.size)))
    bits = np.array([1 << world.rank, 7], np.int64)
    world.all_reduce(bits, "bor")
    assert bits.tolist() == [(1 << world.size) - 1, 7]
    flags = np.array([world.rank == 0, True])
    world.all_reduce(flags, "product")
    assert flags.tolist() == [False, True]


def moves(world) -> None:
    size, rank = world.size, world.rank
    one = values(rank)
    rows = np.zeros((size, 5), np.float32)
    world.all_gather(rows, one)
    everyone = np.stack([values(each) for each in range(size)])
    np.testing.assert_array_equal(rows, everyone)
    parts = [np.zeros(5, np.float32) for _ in range(size)]
    world.all_gather(parts, one)
    np.testing.assert_array_equal(parts, everyone)
    uneven = [np.zeros(each + 1, np.int32) for each in range(size)]
    world.all_gather(uneven, np.full(rank + 1, rank, np.int32))
    assert [part.tolist() for part in uneven] == [[each] * (each + 1) for each in range(size)]

    mine = values(rank)
    world.broadcast(mine, 1)
    np.testing.assert_array_equal(mine, values(1))

    mine, whole = values(rank), np.zeros(5, np.float32)
    world.reduce(mine, 1, output=whole if rank == 1 else None)
    np.testing.assert_array_equal(mine, values(rank))
    np.testing.assert_array_equal(whole, everyone.sum(0) if rank == 1 else np.zeros(5))

    rows[:] = -1
    world.gather(rows if rank == 0 else None, one, 0)
    np.testing.assert_array_equal(rows, everyone if rank == 0 else np.full_like(rows, -1))
    mine = np.zeros(5, np.float32)
    world.scatter(mine, list(everyone) if rank == 2 else None, 2)
    np.testing.assert_array_equal(mine, values(rank))


def scattered_sums(world) -> None:
    size, rank = world.size, world.rank
    wide = np.arange(size * 4, dtype=np.float32) * (rank + 1)
    factor = sum(range(1, size + 1))
    part = np.zeros(4, np.float32)
    world.reduce_scatter(part, wide)
    np.testing.assert_array_equal(part, np.arange(rank * 4, rank * 4 + 4) * factor)
    np.testing.assert_array_equal(wide, np.arange(size * 4) * (rank + 1))  # inputs stay
    uneven = [np.full(each + 1, each + rank, np.int64) for each in range(size)]
    part = np.zeros(rank + 1, np.int64)
    world.reduce_scatter(part, uneven)
    assert part.tolist() == [sum(rank + each for each in range(size))] * (rank + 1)


def exchanges(world) -> None:
    size, rank = world.size, world.rank
    mine = np.arange(size * 2, dtype=np.int32) + 100 * rank
    theirs = np.zeros_like(mine)
    world.all_to_all(theirs, mine)
    assert theirs.reshape(size, 2).tolist() == [[100 * each + 2 * rank, 100 * each + 2 * rank + 1] for each in range(size)]
    # Rank r sends i + 1 rows of two to rank i.
    splits = [each + 1 for each in range(size)]
    mine = np.full((sum(splits), 2), rank, np.float64)
    theirs = np.zeros((size * (rank + 1), 2))
    world.all_to_all(theirs, mine, [rank + 1] * size, splits)
    assert theirs[:, 0].tolist() == [each for each in range(size) for _ in range(rank + 1)]
    parts = [np.zeros(rank + 1) for _ in range(size)]
    world.all_to_all(parts, [np.full(each + 1, rank, np.float64) for each in range(size)])
    assert [part.tolist() for part in parts] == [[each] * (rank + 1) for each in range(size)]


def messages(world) -> None:
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    mine, theirs = values(world.rank), np.zeros(5, np.float32)
    work = world.send(mine, right, 7, async_op=True)
    world.recv(theirs, left, 7)
    work.wait()
    np.testing.assert_array_equal(theirs, values(left))
    batch = world.batch()
    theirs = [np.zeros(5, np.float32) for _ in range(2)]
    for peer, into in ((left, theirs[0]), (right, theirs[1])):
        batch.send(mine, peer, world.rank)
        batch.recv(into, peer, peer)
    assert len(batch) == 4
    batch.issue(async_op=True).wait(TIMEOUT)
    assert len(batch) == 0
    np.testing.assert_array_equal(theirs, [values(left), values(right)])


def works(world) -> None:
    outputs = [np.full(1000, world.rank + step, np.float64) for step in range(20)]
    ended = []
    all_of_them = []
    for step, output in enumerate(outputs):
        work = world.all_reduce(output, async_op=True, timeout=TIMEOUT, hints={"step": step})
        assert (work.op, round(work.timeout)) == ("all_reduce", TIMEOUT)
        work.on_end(lambda step=step: ended.append(step))
        all_of_them.append(work)
    all_of_them[-1].wait()
    assert all(work.done and work.state == "completed" and work.poll() == towline.Status.OK for work in all_of_them)
    for step, output in enumerate(outputs):
        assert (output == sum(rank + step for rank in range(world.size))).all()
    world.barrier()
    started = []
    all_of_them[0].on_start(lambda: started.append(0))  # at once: it has
    assert started == [0]
    while len(ended) < 20:  # the thread of the last one may still be on its way
        world.barrier()
    assert sorted(ended) == list(range(20))


def dropped_works(world) -> None:
    """Nobody keeps the arrays or the works."""
    for _ in range(50):
        world.all_reduce(np.ones(4096), async_op=True)
    world.barrier()


async def _awaited(world) -> float:
    array = np.ones(8)
    await world.all_reduce(array, async_op=True)
    return array[0]


def awaited(world) -> float:
    import asyncio

    return asyncio.run(_awaited(world))


def splits(world) -> list:
    pairs = [0, 1] if world.rank < 2 else []
    pair = world.split(pairs, name="pair")
    if not pairs:
        assert pair is None
        return []
    told = [pair.rank, pair.size, pair.name]
    array = np.ones(3)
    with pair:
        pair.all_reduce(array)
        told.append(array[0])
    assert pair.closed
    return told


def windows(world) -> None:
    size, rank = world.size, world.rank
    window = world.window(4096)
    mine = np.frombuffer(window.memory(), np.int64)
    right, left = (rank + 1) % size, (rank - 1) % size
    window.put(right, 8, np.array([rank + 100], np.int64))
    window.signal(right)
    window.wait_signal(left, TIMEOUT)
    assert (mine[0], mine[1]) == (0, left + 100)
    world.barrier()
    theirs = np.zeros(1, np.int64)
    window.get(right, 8, theirs)
    assert theirs[0] == rank + 100
    assert np.frombuffer(window.memory(right), np.int64)[1] == rank + 100
    assert window.bytes(left) == 4096
    try:
        window.put(right, 4096, theirs)
        raise AssertionError("a put outside of the window went through")
    except towline.OutOfRange:
        pass
    try:
        window.close()
        raise AssertionError("a window closed below an array")
    except towline.Busy:
        del mine
    window.close(TIMEOUT)


def told_by_hooks(world) -> list:
    told = []
    hooks = [world.hook(kind, told.append) for kind in ("pre", "post")]
    array = np.ones(3, np.float32)
    world.all_reduce(array, "max")
    world.barrier()
    for hook in hooks:
        hook.remove()
    world.barrier()
    assert told[0]["op_id"] < told[2]["op_id"]
    return [(one["op"], one.get("datatype"), one.get("count"), one.get("reduction"), one.get("status")) for one in told[:3]]


def mistakes(world) -> list:
    """A mistake that one rank can see raises there, and breaks nothing."""
    array, cases = np.zeros((4, 4), np.float32), []

    def attempt(call) -> None:
        try:
            call()
            cases.append("nothing was raised")
        except (towline.Error, TypeError) as error:
            cases.append(f"{type(error).__name__}: {error}")

    attempt(lambda: world.all_reduce(array[:, 1]))
    attempt(lambda: world.all_reduce(b"constant"))
    attempt(lambda: world.all_reduce("text"))
    attempt(lambda: world.all_reduce(array, "mean"))
    attempt(lambda: world.all_reduce(array.astype(np.complex64)))
    attempt(lambda: world.all_reduce(array, "premul_sum"))
    attempt(lambda: world.all_reduce(array, output=array.astype(np.float64)))
    attempt(lambda: world.all_gather(array, array))
    attempt(lambda: world.all_gather([array], array))
    attempt(lambda: world.broadcast(array, world.size))
    attempt(lambda: world.all_to_all(array, array, [1] * world.size, [1] * world.size))
    attempt(lambda: world.all_to_all(array, array, [4], [4]))
    attempt(lambda: world.split([(world.rank + 1) % world.size]))
    attempt(lambda: world.barrier(timeout=-1))
    world.barrier()
    return cases


def any_type_travels(world) -> None:
    array = np.full(3, 1 + 2j * world.rank)
    world.broadcast(array, 1)
    assert (array == 1 + 2j).all()
    address = np.full(4, world.rank + 1.0)
    world.all_reduce((address.ctypes.data, 4, "float64"))
    assert (address == sum(range(1, world.size + 1))).all()
    buffer = bytearray([world.rank] * 3)
    world.all_reduce(buffer, "max")
    assert bytes(buffer) == bytes([world.size - 1] * 3)
    empty = np.zeros(0, np.float32)
    world.all_reduce(empty)


# ---- what breaks a communicator: each time a new one, in a folder of its own


def disagree(world, folder: str) -> str:
    other = open_communicator(world.rank, world.size, folder)
    try:
        other.all_reduce(np.zeros(3 if world.rank else 4))
        return "nothing was raised"
    except towline.Mismatch as error:
        status, text = other.error
        assert status == towline.Status.MISMATCH
        assert text in str(error) or str(error) in text
        return text
    finally:
        other.close()


def wait_in_vain(world, folder: str) -> str:
    other = open_communicator(world.rank, world.size, folder)
    try:
        if world.rank == 0:
            try:
                other.barrier(timeout=0.5)
                return "nothing was raised"
            except towline.TimedOut:
                pass
        world.barrier()
        try:
            while True:
                other.barrier()
        except towline.Error as error:  # why it broke, on every rank
            return error.status.name
    finally:
        other.close()


def abort_others(world, folder: str) -> str:
    import threading

    other = open_communicator(world.rank, world.size, folder)
    told = []
    raised = []
    heard = threading.Event()

    def aborted(reason: dict) -> None:
        try:
            other.close()  # would wait for the very thread that calls this
        except towline.Error as error:
            told.append((reason, error.status))
        heard.set()

    hook = other.hook("abort", aborted)

    def work() -> None:
        try:
            other.barrier()
        except towline.Error as error:
            raised.append(error)

    waiting = threading.Thread(target=work)
    if world.rank != 0:
        waiting.start()
    world.barrier()
    if world.rank == 0:
        other.abort("enough of this")
    else:
        waiting.join(TIMEOUT)
        assert "enough of this" in str(raised[0]), raised
        assert raised[0].status == towline.Status.CANCELLED
    heard.wait(TIMEOUT)  # by a thread of the library's
    assert "enough of this" in told[0][0]["reason"] and told[0][1] == towline.Status.BUSY, told
    hook.remove()
    other.close()
    anew = open_communicator(world.rank, world.size, folder, name="anew")
    array = np.ones(1)
    anew.all_reduce(array)
    anew.close()
    return f"{array[0]:.0f}"


def keep_going(world) -> str:
    array = np.ones(1024)
    try:
        while True:
            world.all_reduce(array)
    except towline.Error as error:
        return error.status.name

"""towline.fabric: engines in this process and in two."""

from __future__ import annotations

import array
import asyncio
import ctypes
import gc
import multiprocessing
import os
import queue
import threading

import numpy as np
import pytest

import towline
from towline import Status, fabric

RAILS = ["ofi:tcp;ofi_rxm@127.0.0.1"]
PAGE = 4096
LIMIT = 20


@pytest.fixture
def make():
    engines = []

    def make_engine(**options) -> fabric.Engine:
        engines.append(fabric.Engine(RAILS, **options))
        return engines[-1]

    yield make_engine
    for engine in engines:
        engine.close()


class Pair:
    def __init__(self, make, **options) -> None:
        self.one, self.two = make(), make(**options)
        self.source = np.random.default_rng(1).integers(0, 256, 64 * PAGE, dtype=np.uint8)
        self.target = np.zeros(64 * PAGE, dtype=np.uint8)
        self.mine = self.one.register(self.source, writable=True)
        self.theirs = self.two.register(self.target, readable=True, writable=True)
        self.peer = self.one.connect(self.two.address())
        self.remote = fabric.Remote(self.theirs.descriptor())


@pytest.fixture
def pair(make):
    return Pair(make)


def test_buffers_of_a_pool(make):
    one, two = make(), make()
    pool, far = fabric.Pool(one, 1000, 3), fabric.Pool(two, 1000, 2)
    assert pool.buffer_bytes == 1024 and pool.memory.nbytes == 3 * 1024
    taken = [pool.take() for _ in range(3)]
    assert pool.take() is None and sorted(buffer.offset for buffer in taken) == [0, 1024, 2048]
    taken[1].give_back()
    with pytest.raises(towline.Stale):
        taken[1].give_back()
    with pool.take() as mine, far.take() as theirs:
        assert mine.offset == taken[1].offset
        mine.view[:5] = b"hello"
        receive = two.receive(theirs.memory, theirs.nbytes, offset=theirs.offset)
        one.send(one.connect(two.address()), mine.memory, 5, offset=mine.offset, timeout=LIMIT).wait(LIMIT)
        receive.wait(LIMIT)
        assert bytes(theirs.view[:5]) == b"hello"
    assert pool.take() is not None and pool.take() is None
    with pytest.raises(towline.InvalidArgument, match="0 buffers of 64"):
        fabric.Pool(one, 64, 0)


def test_memory_of_a_device_goes_by_its_dma_buf():
    device = os.memfd_create("device")
    os.ftruncate(device, 3 * PAGE)
    nowhere = 0x700000000000  # the rails go by the descriptor; the processor has nothing there
    with fabric.Engine(["loopback:python-device"]) as one, fabric.Engine(["loopback:python-device"]) as two:
        source = np.arange(2 * PAGE, dtype=np.uint8)
        mine = one.register(source)
        theirs = two.register((nowhere, 2 * PAGE), readable=True, writable=True, dma_buf=(device, PAGE))
        peer = one.connect(two.address())
        one.write(peer, mine, fabric.Remote(theirs.descriptor()), 2 * PAGE).wait(LIMIT)
        assert os.pread(device, 2 * PAGE, PAGE) == source.tobytes() and os.pread(device, PAGE, 0) == bytes(PAGE)
        with pytest.raises(towline.Error):
            two.register((nowhere, 3 * PAGE), dma_buf=(device, PAGE))
        if not os.path.exists("/dev/nvidiactl"):
            with pytest.raises(towline.Error, match="cuda"):
                two.register((nowhere, PAGE), gpu=0)
    os.close(device)


def test_the_topology_says_which_rails_serve_what():
    host = fabric.topology()
    assert {"gpus", "ports", "numa_nodes", "choice"} <= host.keys()
    assert all({"rail", "rate", "chosen"} <= port.keys() for port in host["ports"])


def test_pages_ranges_and_counters(pair):
    local, far = array.array("I", [3, 1, 63]), np.array([0, 62, 5])
    move = pair.one.write_pages(pair.peer, pair.mine, local, pair.remote, far, page_bytes=PAGE, immediate=7, count=3)
    pair.two.wait_counter(7, 3, LIMIT)
    move.wait(LIMIT)
    move.wait_fenced(LIMIT)
    assert move.done
    for here, there in zip(local, far):
        assert (pair.target[there * PAGE : (there + 1) * PAGE] == pair.source[here * PAGE : (here + 1) * PAGE]).all()
    assert pair.two.counter(7) == 3
    pair.one.write(pair.peer, pair.mine, pair.remote, 100, local_offset=5, remote_offset=10).wait(LIMIT)
    assert (pair.target[10:110] == pair.source[5:105]).all()
    before = pair.source.copy()
    pair.source[:] = 0
    pair.one.read_pages(pair.peer, pair.mine, local, pair.remote, far, page_bytes=PAGE).wait(LIMIT)
    assert (pair.source[3 * PAGE + 200 : 4 * PAGE] == before[3 * PAGE + 200 : 4 * PAGE]).all()
    with pytest.raises(towline.OutOfRange):
        pair.one.write(pair.peer, pair.mine, pair.remote, PAGE, local_offset=64 * PAGE - 1)
    with pytest.raises(towline.Mismatch):
        pair.one.write_pages(pair.peer, pair.mine, [1, 2], pair.remote, [1], page_bytes=PAGE)
    rail = pair.one.rails()[0]
    assert rail["bytes"] >= 3 * PAGE and "tcp" in rail["name"] and not rail["down"] and rail["longest_pause_ns"] == 0


def test_what_is_of_another_kind_is_refused_by_name(make):
    pair = Pair(make)
    for call in (lambda: fabric.Engine(RAILS, worker_cpu="a"), lambda: pair.one.scatter([("a", pair.mine, 0, pair.remote, 0, 1)])):
        with pytest.raises(TypeError, match="integer"):
            call()
    with pytest.raises(towline.InvalidArgument, match="worker_cpu is an integer"):
        fabric.Engine(RAILS, worker_cpu=1 << 40)
    with pytest.raises(towline.InvalidArgument, match="remote is a Remote or None, not str"):
        pair.one.scatter([(pair.peer, pair.mine, 0, "a", 0, 1)])


def test_what_is_told_comes_on_a_thread_of_its_own(make):
    told: queue.Queue = queue.Queue()
    pair = Pair(make, on_message=lambda peer, data: told.put((data, threading.current_thread())), on_counted=lambda peer, immediate, count: told.put((immediate, count)))
    outcome: queue.Queue = queue.Queue()
    pair.one.signal(pair.peer, message=b"hello", done=outcome.put)
    data, thread = told.get(timeout=LIMIT)
    assert data == b"hello" and thread is not threading.current_thread()
    assert outcome.get(timeout=LIMIT) is Status.OK
    pair.one.signal(pair.peer, immediate=9, count=4)
    assert told.get(timeout=LIMIT) == (9, 4)
    lost = make(on_lost=lambda peer, why: told.put(("lost", why)))
    lost.signal(lost.connect(pair.two.address()), message=b"").wait(LIMIT)
    assert told.get(timeout=LIMIT)[0] == b""
    pair.two.close()
    assert told.get(timeout=LIMIT)[0] == "lost"


def test_scatter_groups_and_barriers(make):
    pair = Pair(make)
    parts = [(pair.peer, pair.mine, 0, pair.remote, 0, 10), (pair.peer, pair.mine, 100, pair.remote, 100, 10), (pair.peer, None, 0, None, 0, 0)]
    pair.one.scatter(parts, immediate=1, count=1).wait(LIMIT)
    pair.two.wait_counter(1, 3, LIMIT)
    assert (pair.target[100:110] == pair.source[100:110]).all() and pair.target[10] == 0
    back = pair.two.connect(pair.one.address())
    group, other = pair.one.add_group([pair.peer]), pair.two.add_group([back])
    first = pair.one.barrier(group, 5)
    with pytest.raises(towline.TimedOut):
        first.wait(0.01)
    pair.two.barrier(other, 5).wait(LIMIT)
    first.wait(LIMIT)
    with pytest.raises(towline.TimedOut):
        pair.one.barrier(group, 5, timeout=0.02).wait(LIMIT)
    with pytest.raises(towline.Stale):
        pair.one.barrier(group, 5)


def test_sends_fill_receives_and_are_awaited(pair):
    async def both():
        got: queue.Queue = queue.Queue()
        received = pair.two.receive(pair.theirs, 3 * PAGE, offset=PAGE, done=lambda *told: got.put(told))
        sent = pair.one.send(pair.peer, pair.mine, 2 * PAGE)
        await asyncio.wait_for(asyncio.gather(_await(sent), _await(received)), LIMIT)
        assert received.received() == got.get(timeout=LIMIT)[1:]
        assert received.received()[1] == 2 * PAGE
        late = pair.two.receive(pair.theirs, timeout=0.02)
        with pytest.raises(towline.TimedOut):
            await late
        assert pair.one.send(pair.peer, pair.mine, 10, timeout=0.02).future().exception(LIMIT).status is Status.TIMED_OUT

    asyncio.run(both())
    assert (pair.target[PAGE : 3 * PAGE] == pair.source[: 2 * PAGE]).all()


async def _await(transfer):
    await transfer


def test_words_are_watched_until_the_function_says_so(pair):
    seen: queue.Queue = queue.Queue()

    def changed(old, new):
        seen.put((old, new))
        return new != 9

    word = pair.two.watch(changed)
    pair.two.mirror_counter(3, word.address)
    pair.one.signal(pair.peer, immediate=3, count=4).wait(LIMIT)
    assert seen.get(timeout=LIMIT) == (0, 4)
    pair.one.signal(pair.peer, immediate=3, count=5).wait(LIMIT)
    assert seen.get(timeout=LIMIT) == (4, 9)
    reached = pair.two.when_counted(3, 10)
    pair.two.mirror_counter(3, 0)
    pair.one.signal(pair.peer, immediate=3, count=1).wait(LIMIT)
    reached.wait(LIMIT)
    assert ctypes.c_uint64.from_address(word.address).value == 9
    assert seen.empty()


def test_words_leave_nothing_behind(pair):
    for _ in range(600):  # more than an engine has at once
        pair.two.watch(lambda old, new: True).unwatch()
    kept = pair.two.watch(lambda old, new: True)
    assert pair.two._native.watches == 1
    kept.unwatch()
    assert pair.two._native.watches == 0 and not pair.two._functions


def test_what_a_dropped_transfer_uses_stays_until_it_is_fenced(make):
    pair = Pair(make)
    dropped = pair.one.send(pair.peer, pair.mine, 4 * PAGE)  # nobody receives it yet
    assert pair.one._native.wait_fenced(dropped._number, 0) is towline.Status.NOT_YET
    del dropped
    gc.collect()
    with pytest.raises(towline.Busy):
        pair.mine.deregister()
    pair.two.receive(pair.theirs).wait(LIMIT)
    while pair.one._lingering:
        threading.Event().wait(0.01)
    pair.mine.deregister()
    with pytest.raises(towline.Stale):
        pair.mine.descriptor()


def test_closing_ends_the_waits_of_other_threads(make):
    engine, told = make(), []

    def wait() -> None:
        try:
            engine.wait_counter(7, 1)
        except towline.Error as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    engine.close()
    waiting.join(LIMIT)
    assert not waiting.is_alive() and told


def test_wrong_arguments_and_closed_engines_are_named(make):
    with pytest.raises(towline.InvalidArgument, match="names no rail"):
        fabric.Engine(["what"])
    with pytest.raises(TypeError, match="a list of names"):
        fabric.Engine("ofi:shm")  # not seven rails "o", "f", ..
    engine = make()
    with pytest.raises(TypeError, match="changed is a function"):
        engine.watch(3)
    with pytest.raises(towline.ProtocolError):
        engine.connect(b"junk")
    with pytest.raises(towline.ProtocolError):
        fabric.Remote(b"junk")
    with pytest.raises(BufferError):
        engine.register(b"constant", writable=True)
    engine.register(b"constant").deregister()
    engine.close()
    engine.close()
    with pytest.raises(towline.Closed):
        engine.address()


def _serve_pages(pipe) -> None:
    with fabric.Engine(RAILS) as engine:
        target = np.zeros(64 * PAGE, dtype=np.uint8)
        memory = engine.register(target, readable=True, writable=True)
        pipe.send((engine.address(), memory.descriptor()))
        engine.wait_counter(1, 64, LIMIT)
        pipe.send(target.tobytes())
        pipe.recv()


def test_two_processes():
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_serve_pages, args=(there,))
    child.start()
    address, descriptor = here.recv()
    with fabric.Engine(RAILS) as engine:
        source = np.random.default_rng(2).integers(0, 256, 64 * PAGE, dtype=np.uint8)
        memory = engine.register(source)
        order = np.random.default_rng(3).permutation(64)
        engine.write_pages(engine.connect(address), memory, range(64), fabric.Remote(descriptor), order, page_bytes=PAGE, immediate=1, count=64).wait(LIMIT)
        got = np.frombuffer(here.recv(), dtype=np.uint8).reshape(64, PAGE)
        assert (got[order] == source.reshape(64, PAGE)).all()
        here.send("done")
    child.join(LIMIT)
    assert child.exitcode == 0

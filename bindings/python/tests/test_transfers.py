"""Transfers between two processes, and what may be picked."""

from __future__ import annotations

import array
import threading

import numpy as np
import pytest

import towline
from conftest import BACKENDS, TIMEOUT, Pair, stamped


def local_pages(agent: towline.Agent, server):
    pages = stamped(server.pages, server.page_bytes, 0)
    return pages, agent.register(pages, access="rw"), agent.block_list(pages)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_cross_processes_both_ways(make_agent, server, backend):
    agent = make_agent("client")
    peer = agent.connect(server.address)
    pages, _region, mine = local_pages(agent, server)
    theirs = peer.block_list(server.blocks)
    before = server.ask("pages")
    picks, their_picks = np.array([5, 0, 9], np.int32), np.array([1, 2, 60], np.int64)

    move = agent.transfer(theirs[their_picks], mine[picks], backend=backend)
    assert move.wait(TIMEOUT) == towline.Status.OK
    assert move.route()["backend"] == backend
    assert np.array_equal(pages[picks], before[their_picks])
    assert np.array_equal(np.delete(pages, picks, 0), np.delete(stamped(server.pages, server.page_bytes, 0), picks, 0))

    pages[:] = stamped(server.pages, server.page_bytes, 7000)
    agent.transfer(mine[slice(10, 20)], theirs[range(30, 50, 2)], backend=backend).wait(TIMEOUT)
    after = server.ask("pages")
    assert np.array_equal(after[30:50:2], pages[10:20])
    assert np.array_equal(np.delete(after, range(30, 50, 2), 0), np.delete(before, range(30, 50, 2), 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_notice_follows_its_data_and_counters_count(make_agent, server, backend):
    agent = make_agent(f"client-{backend}")
    peer = agent.add_peer(server.blob)
    pages, _region, mine = local_pages(agent, server)
    theirs = peer.block_list(server.blocks)
    pages[:] = 4242
    move = agent.transfer(mine[[3]], theirs[[3]], notice=b"req-1", backend=backend)
    for notice in (b"req-1", b"req-2", b""):
        move.set_notice(notice)
        move.post()
        assert server.ask("receive") == (agent.name, notice)
        assert (server.ask("pages")[3] == 4242).all()
        assert move.wait(TIMEOUT) == towline.Status.OK
    counted = agent.transfer(mine[[3]], theirs[[3]], counter=(server.counter_key, 4), backend=backend)
    counted.wait(TIMEOUT)
    peer.add(server.counter_key)
    assert server.ask("counter") >= 5
    server.ask((agent.name, b"back"))
    notice = agent.receive(TIMEOUT)
    assert (notice.peer.name, notice.data) == ("server", b"back")


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_index_arrays_of_each_type(pair, dtype):
    picks = np.array([7, 2, 11], dtype)
    theirs = np.array([0, 15, 1], dtype)
    pair.read(picks, theirs).wait(TIMEOUT)
    assert np.array_equal(pair.mine[[7, 2, 11]], pair.theirs[[0, 15, 1]])


@pytest.mark.parametrize(
    "picks",
    [
        [4, 2],
        (4, 2),
        range(4, 0, -2),
        slice(4, 0, -2),
        array.array("i", [4, 2]),
        array.array("Q", [4, 2]),
        memoryview(np.array([4, 2], "u8")),
        np.array([4, 99, 2, 99], "i4")[::2],
        np.array([4, 99, 2, 99], "i8")[::2],
        [np.int64(4), np.uint8(2)],
    ],
    ids=lambda picks: f"{type(picks).__name__}-{picks}"[:40],
)
def test_other_ways_to_pick(pair, picks):
    pair.read(picks, [1, 2]).wait(TIMEOUT)
    assert (pair.mine[4] == 1001).all() and (pair.mine[2] == 1002).all()


def test_slices_and_single_indices(pair):
    pair.read(slice(None, None, 4), slice(-4, None)).wait(TIMEOUT)
    assert np.array_equal(pair.mine[::4], pair.theirs[-4:])
    pair.read(1, 9).wait(TIMEOUT)
    assert (pair.mine[1] == 1009).all()
    pair.read(None, None).wait(TIMEOUT)
    assert np.array_equal(pair.mine, pair.theirs)


def test_index_arrays_are_not_copied(make_agent):
    """A second copy of the indices would show in the peak of what Python's and the extension's allocators hold."""
    import resource

    pages = 4_000_000
    pair = Pair(make_agent, pages=4, page_bytes=4096)
    memory = np.zeros(pages, np.uint8)
    region = pair.near.register(memory, access="rw")
    blocks = pair.near.block_list(towline.Blocks(region.address, 1, (pages, 1)))
    indices = np.arange(pages, dtype=np.int64)
    pair.near.transfer(blocks[indices], blocks[indices])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    move = pair.near.transfer(blocks[indices], blocks[indices])
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < indices.nbytes / 2, "ascending indices become a range, and need no memory"
    assert move.nbytes == pages


def test_transfer_is_posted_again_and_again(pair):
    move = pair.write([0], [0])
    assert not move.posted
    for value in range(5):
        pair.mine[0] = value
        if move.post() == towline.Status.IN_PROGRESS:
            while move.poll() == towline.Status.IN_PROGRESS:
                pass
        assert (pair.theirs[0] == value).all()
    pair.mine[0] = 99
    assert move.wait() == towline.Status.OK  # of the last post: it does not post again
    assert (pair.theirs[0] == 4).all()
    result = move.result
    assert (result.status, result.nbytes, result.total_nbytes, result.blocks) == (towline.Status.OK, 4096, 4096, 1)
    assert result.fenced_locally and result.fenced_remotely and result.failed == []


def test_unequal_blocks_are_cut(make_agent):
    pair = Pair(make_agent, pages=8, page_bytes=4096)
    half_pages = pair.peer.block_list(towline.Blocks(pair.theirs.ctypes.data, 2048, (16, 2048)))
    pair.near.transfer(half_pages[[0, 1, 4, 5]], pair.my_blocks[[0, 1]]).wait(TIMEOUT)
    assert (pair.mine[0] == 1000).all() and (pair.mine[1] == 1002).all()


def test_block_lists_from_arrays_and_tuples(make_agent):
    agent = make_agent()
    cache = np.zeros((2, 8, 16, 4), np.float16)  # keys and values, pages, tokens, dimensions
    region = agent.register(cache, access="rw")
    assert agent.block_list(cache).blocks == 2
    pages = agent.block_list(cache, page_dim=1)
    assert (pages.blocks, pages.nbytes, len(pages)) == (16, cache.nbytes, 16)
    assert agent.block_list([cache[0], cache[1]]).blocks == 16
    assert agent.block_list((region.address, 64)).nbytes == 64
    rows = [(region.address, 64), (region.address + 128, 64, 0), towline.Blocks(region.address, 8, (2, 16))]
    assert agent.block_list(rows).blocks == 4
    for columns in (2, 3):
        table = np.zeros((2000, columns + 1), np.uint64)[:, :columns]  # rows with a gap between them
        table[:, 0] = region.address
        table[:, 1] = 32
        listed = agent.block_list(table)
        assert (listed.blocks, listed.nbytes) == (2000, 64000)
    assert agent.block_list(np.zeros((1, 2), np.int64) + [region.address, 8]).nbytes == 8
    tokens = np.zeros((5, 2), np.int64)
    agent_region = agent.register(tokens, access="rw")
    assert agent.block_list(tokens, page_dim=0).nbytes == tokens.nbytes
    assert agent_region.nbytes == tokens.nbytes


def test_blocks_are_values():
    import pickle

    blocks = towline.Blocks(4096, 64, (8, 128), (2, 64))
    assert (blocks.address, blocks.length, blocks.dims, blocks.kind, len(blocks)) == (
        *(4096, 64, ((8, 128), (2, 64)), "dram"),
        16,
    )
    assert blocks == pickle.loads(pickle.dumps(blocks)) == eval(repr(blocks), {"Blocks": towline.Blocks})
    assert blocks != towline.Blocks(4096, 64) and hash(blocks) == hash(pickle.loads(pickle.dumps(blocks)))


def test_other_threads_run_while_one_waits(make_agent):
    """receive() and wait() give the GIL up: another thread sends what they wait for."""
    agent, other = make_agent("waiter"), make_agent("sender")
    peer = other.add_peer(agent.metadata())
    waiting = threading.Event()

    def send() -> None:
        waiting.wait(TIMEOUT)
        peer.send(b"hello")

    thread = threading.Thread(target=send)
    thread.start()
    waiting.set()
    notice = agent.receive(TIMEOUT)
    thread.join(TIMEOUT)
    assert notice.data == b"hello"


def test_many_threads_share_an_agent(make_agent):
    pair = Pair(make_agent, pages=64)
    failures = []

    def work(index: int) -> None:
        try:
            for _ in range(200):
                pair.write([index], [index]).wait(TIMEOUT)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not failures
    assert np.array_equal(pair.mine[:8], pair.theirs[:8])


def test_what_moves_no_gpu_memory_is_not_ordered_in_streams(pair):
    move = pair.write()

    class OfTorch:
        cuda_stream = 0

    class OfTheProtocol:
        def __cuda_stream__(self):
            return (0, 0)

    for stream in (0, OfTorch(), OfTheProtocol()):
        for call in (move.post_on, move.wait_on):
            with pytest.raises(towline.Unsupported, match="in the order of a stream"):
                call(stream)
    with pytest.raises(towline.InvalidArgument, match="stream: .* not str"):
        move.post_on("stream")
    assert (move.replays.begun, move.replays.status) == (0, towline.Status.OK)
    assert move.wait(TIMEOUT) == towline.Status.OK

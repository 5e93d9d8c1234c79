"""Easily wrong details: errors that say with whom, waits that gave up, copies nobody asked for, ends of blocks."""

from __future__ import annotations

import asyncio
import gc
import pickle
import warnings

import numpy as np
import pytest

import towline
from conftest import TIMEOUT, Pair


def test_each_status_but_the_good_ones_has_a_class():
    made = {status: towline._errors._make(status, "why") for status in towline.Status if status < 0}
    assert len({type(error) for error in made.values()}) == len(made)
    assert all(type(error) is not towline.Error and error.status == status for status, error in made.items())
    assert isinstance(made[towline.Status.NO_SPACE], OSError) and made[towline.Status.NO_SPACE].errno == 28
    assert isinstance(made[towline.Status.ALREADY_EXISTS], FileExistsError)


def test_a_failed_copy_says_with_whom_and_by_what(make_agent):
    pair = Pair(make_agent, backends="tcp", default_timeout=TIMEOUT)
    plan = pair.near.plan(pair.my_blocks, pair.their_blocks)
    plan.post([0], [0]).result(TIMEOUT)
    post = plan.post([1], [1])
    post.cancel()
    try:
        post.result(TIMEOUT)
    except towline.Cancelled as error:
        assert error.peer.name == "far"
        assert error.backend == "tcp"
        assert error.result.status == towline.Status.CANCELLED
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.status, copy.backend) == (type(error), str(error), error.status, "tcp")
        assert copy.peer is None


def test_waits_that_gave_up_are_not_yet(make_agent):
    pair = Pair(make_agent)
    counter = pair.near.counter()
    with pytest.raises(towline.NotYet, match="has not reached 3 yet") as raised:
        counter.wait(3, timeout=0.01)
    assert raised.value.status == towline.Status.NOT_YET
    assert isinstance(raised.value, TimeoutError)
    group = pair.near.group(timeout=TIMEOUT)
    with pytest.raises(towline.NotYet, match="a group is still in flight"):
        group.wait(0.01)
    group.close()
    assert group.wait(TIMEOUT) == towline.Status.OK


def test_a_copy_that_nobody_awaits_warns(make_agent):
    pair = Pair(make_agent, backends="tcp", pages=512)
    with pytest.warns(RuntimeWarning, match="nobody awaited it"):
        pair.near.copy(pair.my_blocks, pair.their_blocks)
        gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.near.copy(pair.my_blocks, pair.their_blocks).result(TIMEOUT)
        with pair.near.group() as group:
            group.copy(pair.my_blocks, pair.their_blocks)


def test_blocks_end_what_they_hold(make_agent):
    agent = make_agent()
    with agent.allocate(4096) as memory:
        assert memory.nbytes == 4096
        with agent.register(memory, access="rw") as region:
            assert region.nbytes == 4096
        assert repr(region) == "Region(deregistered)"
    assert repr(memory) == "Memory(freed)"


def test_memory_is_a_dlpack_tensor(make_agent):
    memory = make_agent().allocate(4096)
    array = np.from_dlpack(memory)
    memory.numpy()[7] = 9
    assert array[7] == 9 and array.nbytes == 4096
    assert memory.__dlpack_device__() == (1, 0)


def test_the_peers_of_an_agent_can_be_iterated(pair):
    assert [peer.name for peer in pair.near.peers] == ["far"]
    assert pair.near.peers[0].incarnation == pair.peer.incarnation


def test_a_failed_group_says_with_whom_and_by_what(make_agent):
    pair = Pair(make_agent, backends="tcp", default_timeout=TIMEOUT)
    group = pair.near.group(timeout=TIMEOUT)
    group.copy(pair.my_blocks[0], pair.their_blocks[0])
    with pytest.raises(towline.OutOfRange):
        group.copy(pair.my_blocks[[99]], pair.their_blocks[0])
    with pytest.raises(towline.OutOfRange, match="member 1 of 2") as raised:
        group.wait(TIMEOUT)
    assert raised.value.peer == pair.peer
    assert raised.value.backend == "tcp"
    assert (raised.value.result.failed_member, raised.value.result.members) == (1, 2)
    assert repr(raised.value.result).startswith("GroupResult(status=OUT_OF_RANGE, members=2, nbytes=")

    async def awaited():
        async with pair.near.group(timeout=TIMEOUT) as alone:
            alone.cancel()

    with pytest.raises(towline.Cancelled) as cancelled:
        asyncio.run(awaited())
    assert cancelled.value.peer is None, "no member failed"
    assert cancelled.value.result.members == 0


def test_results_are_named_tuples(make_agent, tmp_path):
    agent = make_agent(listen="none")
    (tmp_path / "file").write_bytes(b"12345")
    kind, nbytes, modified_ns = info = agent.query_storage(tmp_path / "file")
    assert (info.kind, info.nbytes, info.modified_ns) == (kind, nbytes, modified_ns) == ("file", 5, modified_ns)
    file = agent.register_storage(tmp_path / "file", access="all", nbytes=4096)
    memory = agent.register(np.zeros(4096, np.uint8))
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(towline.Error) as raised:
        agent.copy(agent.block_list(file.blocks(0, 1024, (4, 1024))), agent.block_list(memory.blocks(0, 1024, (4, 1024)))).result(TIMEOUT)
    (failed,) = raised.value.result.failed
    assert isinstance(failed, towline.FailedRange)
    assert (failed.first, failed.blocks, failed.status) == (0, 4, raised.value.status)
    assert pickle.loads(pickle.dumps(failed)) == failed
    assert towline.DirectoryEvent("put", "key", b"value") == ("put", "key", b"value")


@pytest.mark.parametrize("wait", ["connect", "refresh"])
def test_a_deadline_that_has_passed_is_not_the_default(pair, wait):
    call = {"connect": lambda: pair.near.connect(pair.far.address, 0), "refresh": lambda: pair.peer.refresh(timeout=0)}[wait]
    with pytest.raises(towline.TimedOut):
        call()

    async def awaited():
        return await {
            "connect": lambda: pair.near.connect_async(pair.far.address, 0),
            "refresh": lambda: pair.peer.refresh_async(timeout=0),
        }[wait]()

    with pytest.raises(towline.TimedOut):
        asyncio.run(awaited())


def test_the_sentence_of_a_failure_is_its_own(pair):
    """Not that of an older failure of the thread."""
    with pytest.raises(towline.NotFound, match="nobody"):
        pair.near.find_peer("nobody")
    for call in (
        lambda: pair.near.counter().wait(1, 0),
        lambda: pair.near.copy(pair.my_blocks[[99]], pair.their_blocks[[0]]),
        lambda: pair.peer.send(b"x" * 70000),
    ):
        with pytest.raises(towline.Error) as raised:
            call()
        assert "nobody" not in str(raised.value) and str(raised.value)


@pytest.mark.parametrize("loop", ["uvloop", "anyio"])
def test_other_loops_wait_too(pair, loop):
    async def main():
        results = [pair.near.copy(pair.my_blocks[i], pair.their_blocks[i]) for i in range(8)]
        for post in results:
            await post
        counter = pair.far.counter()
        await pair.peer.add_async(counter.key, 2)
        assert await counter.wait_async(2, TIMEOUT) == 2
        await pair.peer.send_async(b"hello")
        return await anext(pair.far.notices())

    if loop == "uvloop":
        import uvloop

        assert uvloop.run(main()).data == b"hello"
    else:
        import anyio

        async def in_a_group():
            async with anyio.create_task_group() as group, anyio.create_task_group() as cancelled:
                cancelled.start_soon(pair.near.counter().wait_async, 1)
                group.start_soon(main)
                await anyio.lowlevel.checkpoint()
                cancelled.cancel_scope.cancel()

        anyio.run(in_a_group)

"""What is easy to get wrong: errors that say with whom, waits that gave up, copies nobody asked about, ends of blocks."""

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
    pair = Pair(make_agent, backends="tcp", timeout=TIMEOUT)
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


def test_calls_that_block_have_a_form_that_does_not(pair):
    async def all_of_them() -> None:
        await pair.peer.send_async(b"hello")
        await pair.peer.refresh_async(timeout=TIMEOUT)
        counter = pair.far.counter()
        pair.peer.add(counter.key, 2)
        assert await counter.wait_async(2, TIMEOUT) == 2
        post = pair.near.copy(pair.my_blocks, pair.their_blocks)
        await post
        await post.wait_fenced_async("both", TIMEOUT)
        await pair.my_region.deregister_async(TIMEOUT)

    asyncio.run(asyncio.wait_for(all_of_them(), TIMEOUT))
    assert pair.far.receive(TIMEOUT).data == b"hello"
    assert repr(pair.my_region) == "Region(deregistered)"

"""Plans, posts, copies and groups."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

import towline
from conftest import BACKENDS, TIMEOUT, Pair


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT), debug=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_post_brings_its_picks(make_agent, backend):
    pair = Pair(make_agent, backends=backend)
    plan = pair.near.plan(pair.their_blocks, pair.my_blocks)
    for here, there in ([1, 5, 3], [0, 2, 4]), ([7], [7]), (slice(8, 12), np.array([15, 13, 12, 14])):
        result = plan.post(there, here).result(TIMEOUT)
        assert result.status == towline.Status.OK
        assert np.array_equal(pair.mine[here], pair.theirs[there])
        assert result.nbytes == pair.mine[here].nbytes
    assert plan.route()["backend"] == backend


def test_copy_goes_from_what_is_named_first(pair):
    post = pair.near.copy(pair.their_blocks[[3, 4]], pair.my_blocks[[1, 0]], notice=b"pulled")
    assert post.wait(TIMEOUT) == towline.Status.OK
    assert np.array_equal(pair.mine[[1, 0]], pair.theirs[[3, 4]])
    assert pair.far.receive(TIMEOUT).data == b"pulled"
    pair.mine[2] = 77
    pair.near.copy(pair.my_blocks[2], pair.their_blocks[-1]).result(TIMEOUT)
    assert np.array_equal(pair.theirs[-1], pair.mine[2])
    pair.near.copy(pair.my_blocks, pair.their_blocks).result(TIMEOUT)
    assert np.array_equal(pair.theirs, pair.mine)
    with pytest.raises(IndexError):
        pair.my_blocks[len(pair.my_blocks)]


def test_wrong_picks_raise_and_name_the_pick(pair):
    plan = pair.near.plan(pair.my_blocks, pair.their_blocks)
    with pytest.raises(towline.OutOfRange, match="index 99 at position 1 of 2"):
        plan.post([0, 99], [0, 1])
    with pytest.raises(towline.Mismatch, match="2 'from' blocks"):
        plan.post([0, 1], [0, 1, 2])
    with pytest.raises(towline.InvalidArgument, match="picked twice"):
        plan.post([0, 1], [3, 3])
    with pytest.raises(towline.InvalidArgument, match="priority"):
        plan.post([0], [0], priority="soon")
    assert plan.post([0], [0]).wait(TIMEOUT) == towline.Status.OK


def test_a_list_of_blocks_can_be_iterated(pair):
    assert [picked.picks for picked in pair.my_blocks] == list(range(len(pair.my_blocks)))


def test_a_lost_peer_is_named(make_agent):
    pair = Pair(make_agent, backends="tcp")
    plan = pair.near.plan(pair.my_blocks, pair.their_blocks)
    plan.post().result(TIMEOUT)
    pair.far.close()
    with pytest.raises(towline.Error, match="peer"):
        plan.post().result(TIMEOUT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_are_awaited_together(make_agent, server, backend):
    agent = make_agent("client", backends=backend)

    async def main():
        peer = await agent.connect_async(server.address)
        pages = np.zeros((server.pages, server.page_bytes), np.uint8)
        region = agent.register(pages, access="rw")
        mine, theirs = agent.block_list(pages), peer.block_list(server.blocks)
        results = await asyncio.gather(*(agent.copy(theirs[i], mine[i]) for i in range(server.pages)))
        assert [result.status for result in results] == [towline.Status.OK] * server.pages
        return pages, region

    pages, _ = run(main())
    assert np.array_equal(pages.view("u4"), server.ask("pages"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_group_is_told_once_when_all_is_there(make_agent, backend):
    pair = Pair(make_agent, backends=backend)
    pair.mine[:] = 9
    with pair.near.group(notice=b"all layers", timeout=TIMEOUT) as group:
        for page in range(len(pair.mine)):
            group.copy(pair.my_blocks[page], pair.their_blocks[page])
    assert pair.far.receive(TIMEOUT).data == b"all layers"
    assert np.array_equal(pair.mine, pair.theirs)
    assert group.result.members == len(pair.mine)
    assert group.result.nbytes == pair.mine.nbytes
    with pytest.raises(towline.InvalidArgument, match="closed before"):
        group.close()
    plan = pair.near.plan(pair.my_blocks, pair.their_blocks)
    for no_member in (group, 5):  # posts join by the group's own methods
        with pytest.raises(towline.InvalidArgument, match="group.add"):
            plan.post(group=no_member)


def test_a_post_says_what_it_has_moved_so_far(make_agent):
    pair = Pair(make_agent, pages=256)
    pair.near.set_limit(8 * pair.mine.nbytes)  # an eighth of a second
    plan = pair.near.plan(pair.my_blocks, pair.their_blocks)
    post = plan.post()
    seen = [post.peek()]
    while not post.done():
        seen.append(post.peek())
    pair.near.set_limit(0)
    assert seen[0].status == towline.Status.IN_PROGRESS
    assert seen[0].nbytes < post.nbytes == seen[0].total_nbytes
    assert any(0 < one.nbytes < post.nbytes for one in seen)
    assert post.peek().nbytes == post.result().nbytes == post.nbytes
    assert post.peek().status == towline.Status.OK

    stopped = pair.near.plan(pair.my_blocks, pair.their_blocks).post(timeout=TIMEOUT)
    stopped.cancel()
    assert stopped.peek().status in (towline.Status.CANCELLED, towline.Status.OK)


@pytest.mark.parametrize("backend", BACKENDS)
def test_limits_hold_bytes_back(make_agent, backend):
    pair = Pair(make_agent, backends=backend)
    pair.mine[:] = 7
    group = pair.near.group(timeout=TIMEOUT)
    for limited in (pair.near, pair.peer, group):
        limited.set_limit(10 * pair.mine.nbytes)
        begun = time.monotonic()
        if limited is group:
            group.copy(pair.my_blocks, pair.their_blocks)
            group.close()
            group.wait(TIMEOUT)
        else:
            pair.near.copy(pair.my_blocks, pair.their_blocks).result(TIMEOUT)
        assert time.monotonic() - begun >= 0.05, "a tenth of a second at the limit"
        limited.set_limit(0)
    assert np.array_equal(pair.mine, pair.theirs)
    pair.near.set_limit(1, "latency")  # of others
    pair.near.copy(pair.my_blocks, pair.their_blocks).result(TIMEOUT)
    with pytest.raises(towline.InvalidArgument, match="'bulk'"):
        pair.near.set_limit(1, "urgent")


def test_a_refused_member_ends_its_group(pair):
    with pytest.raises(towline.OutOfRange):
        with pair.near.group(notice=b"never") as group:
            group.copy(pair.my_blocks[0], pair.their_blocks[0])
            group.copy(pair.my_blocks[[99]], pair.their_blocks[0])
    with pytest.raises(towline.OutOfRange, match="member 1 of 2"):
        group.wait(TIMEOUT)
    assert group.result.failed_member == 1
    assert pair.far.receive(0.05) is None


def test_a_group_is_awaited(make_agent, server):
    agent = make_agent("client", backends="tcp")

    async def main():
        peer = await agent.connect_async(server.address)
        pages = np.zeros((server.pages, server.page_bytes), np.uint8)
        region = agent.register(pages, access="rw")
        mine, theirs = agent.block_list(pages), peer.block_list(server.blocks)
        async with agent.group(timeout=TIMEOUT, priority="latency") as group:
            for i in range(server.pages):
                group.copy(theirs[i], mine[i])
        return pages, region, group

    pages, _, group = run(main())
    assert group.result.status == towline.Status.OK
    assert np.array_equal(pages.view("u4"), server.ask("pages"))


def test_a_cancelled_task_waits_for_the_fence(make_agent):
    pair = Pair(make_agent, pages=64, page_bytes=1 << 20, backends="tcp")

    async def main():
        post = pair.near.copy(pair.my_blocks, pair.their_blocks)
        task = asyncio.ensure_future(post)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        post.wait_fenced("local", 0)  # raises unless it holds

    run(main())

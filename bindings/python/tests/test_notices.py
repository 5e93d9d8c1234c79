"""Notices, their senders and their tags."""

from __future__ import annotations

import asyncio
import threading

import pytest

import towline
from conftest import BACKENDS, TIMEOUT, Pair
from test_asyncio import rounds, run


def test_notices_are_iterated_until_the_agent_is_closed(make_agent):
    receiver, sender = make_agent("receiver"), make_agent("sender")
    peer = sender.add_peer(receiver.metadata())
    sent = [b"%d" % number for number in range(300)]

    got = []

    async def receive():
        async for notice in receiver.notices():
            got.append((notice.peer.name, notice.data))
            await asyncio.sleep(0)

    async def main():
        receiving = [asyncio.create_task(receive()) for _ in range(2)]  # which share them
        for data in sent:
            await peer.send_async(data)
        while len(got) < len(sent):
            await asyncio.sleep(0)
        await receiver.close_async()
        await asyncio.gather(*receiving)

    run(main())
    assert sorted(got) == sorted(("sender", data) for data in sent)


def test_notices_that_nobody_awaits_wait_for_receive(make_agent):
    pair = Pair(make_agent, backends="tcp")

    async def main():
        back = pair.far.add_peer(pair.near.metadata())
        for number in range(20):
            await back.send_async(b"%d" % number)
        for _ in range(5):
            await pair.near.copy(pair.my_blocks, pair.their_blocks)

    run(main())
    assert [pair.near.receive(TIMEOUT).data for _ in range(20)] == [b"%d" % number for number in range(20)]
    assert pair.near.receive(0) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_tags_go_to_their_subscribers(make_agent, backend):
    pair = Pair(make_agent, backends=backend)

    async def main():
        with pair.far.notices(tag=7) as sevens, pair.far.notices(tag=0x100, mask=0xF00) as hundreds:
            waiting = [asyncio.ensure_future(anext(one)) for one in (sevens, hundreds, pair.far.notices())]
            await asyncio.sleep(0)
            await pair.peer.send_async(b"plain")
            await pair.peer.send_async(b"masked", tag=0x123)
            await pair.near.copy(pair.my_blocks[0], pair.their_blocks[0], notice=b"copied", tag=7)
            told = await asyncio.gather(*waiting)
            assert [(notice.tag, notice.data) for notice in told] == [(7, b"copied"), (0x123, b"masked"), (0, b"plain")]
            async with pair.near.group(notice=b"grouped", tag=7) as group:
                group.copy(pair.my_blocks[1], pair.their_blocks[1])
            assert (await anext(sevens)).data == b"grouped"
        with pytest.raises(StopAsyncIteration):
            await sevens.__anext__()
        await pair.peer.send_async(b"late", tag=7)
        return await anext(pair.far.notices())

    late = run(main())
    assert (late.tag, late.data, late.nbytes) == (7, b"late", 4)
    assert repr(late) == f"Notice(peer={late.peer!r}, tag=7, data=b'late')"


def test_a_subscription_that_ends_stops_its_task_alone(pair):
    async def main():
        sevens = pair.far.notices(tag=7)
        all_others = asyncio.ensure_future(anext(pair.far.notices()))
        waiting = asyncio.ensure_future(_all(sevens))
        await rounds()
        sevens.close()
        assert await waiting == []
        await pair.peer.send_async(b"x", tag=7)
        assert (await all_others).data == b"x"

    run(main())


async def _all(notices):
    return [notice async for notice in notices]


def test_threads_receive_by_tag(pair):
    sevens = pair.far.notices(tag=7)
    got = []
    thread = threading.Thread(target=lambda: got.append(sevens.receive(TIMEOUT)))
    thread.start()
    pair.peer.send(b"no", tag=6)
    pair.peer.send(b"yes", tag=7)
    thread.join(TIMEOUT)
    assert got[0].data == b"yes"
    assert sevens.receive(0) is None
    assert pair.far.receive(TIMEOUT).data == b"no"


def test_the_sender_is_answered_without_its_name(pair):
    pair.peer.send(b"question")
    question = pair.far.receive(TIMEOUT)
    question.peer.send(b"answer")
    answer = pair.near.receive(TIMEOUT)
    assert answer.data == b"answer"
    assert answer.peer == pair.peer and hash(answer.peer) == hash(pair.peer)
    assert question.peer != answer.peer and question.peer != "near"


def test_a_bad_tag_is_refused(pair):
    for tag in (-1, 1 << 64, "x"):
        with pytest.raises((ValueError, TypeError)):
            pair.peer.send(b"x", tag=tag)
        with pytest.raises((ValueError, TypeError)):
            pair.far.notices(tag=tag)
    with pytest.raises(towline.InvalidArgument, match="a mask needs a tag"):
        pair.far.notices(mask=1)
    with pytest.raises(towline.InvalidArgument, match="there is no notice"):
        pair.near.copy(pair.my_blocks, pair.their_blocks, tag=5)

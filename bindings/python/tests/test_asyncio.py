"""Awaiting connections, transfers and notices."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pytest

import towline
from conftest import BACKENDS, TIMEOUT, Pair


def run(coroutine):
    """Runs it with a deadline, and with asyncio's own checks."""
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT), debug=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transfers_are_awaited(make_agent, server, backend):
    agent = make_agent("client")

    async def main():
        peer = await agent.connect(server.address)
        pages = np.zeros((server.pages, server.page_bytes), np.uint8)
        region = agent.register(pages, access="rw")
        mine, theirs = agent.block_list(pages), peer.block_list(server.blocks)
        moves = [agent.read(mine, [i], theirs, [i], backend=backend) for i in range(server.pages)]
        assert all(move.awaitable for move in moves)
        assert await asyncio.gather(*moves) == [towline.Status.OK] * server.pages
        assert await moves[0] == towline.Status.OK  # the outcome stays
        for _ in range(50):
            moves[0].post()
            await moves[0]
        return pages, region

    pages, _ = run(main())
    assert np.array_equal(pages.view("u4"), server.ask("pages"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_transfer_made_before_the_loop_is_awaited(make_agent, server, backend):
    agent = make_agent("client")
    peer = agent.add_peer(server.blob)
    pages = np.zeros((server.pages, server.page_bytes), np.uint8)
    region = agent.register(pages, access="rw")
    move = agent.read(agent.block_list(pages), None, peer.block_list(server.blocks), None, backend=backend)
    assert not move.awaitable

    async def main():
        return await move

    assert run(main()) == towline.Status.OK
    assert np.array_equal(pages.view("u4"), server.ask("pages"))
    assert region.bytes == pages.nbytes


def test_notices_are_iterated_until_the_agent_is_closed(make_agent):
    receiver, sender = make_agent("receiver"), make_agent("sender")
    peer = sender.add_peer(receiver.metadata())
    sent = [b"%d" % number for number in range(300)]

    async def receive():
        return [(notice.peer, notice.data) async for notice in receiver.notices()]

    async def main():
        receiving = asyncio.create_task(receive())
        for data in sent:
            await asyncio.to_thread(peer.send, data)
        peer.send(b"last")
        async for notice in receiver.notices():  # two may share
            if notice.data == b"last":
                break
            sent.remove(notice.data)
        receiver.close()
        return await receiving

    got = run(main())
    assert sorted(data for _, data in got if data != b"last") == sorted(sent)
    assert {name for name, _ in got} <= {"sender"}


def test_notices_that_nobody_awaits_wait_for_receive(make_agent):
    pair = Pair(make_agent)

    async def main():
        back = pair.far.add_peer(pair.near.metadata())
        for number in range(20):
            back.send(b"%d" % number)
        for _ in range(5):
            await pair.near.write(pair.my_blocks, None, pair.their_blocks, None, backend="tcp")

    run(main())
    assert [pair.near.receive(TIMEOUT).data for _ in range(20)] == [b"%d" % number for number in range(20)]
    assert pair.near.receive(0) is None


def test_agent_serves_one_loop_after_another(pair):
    async def main():
        await pair.write()
        await pair.write(backend="tcp")

    for _ in range(3):
        run(main())


def test_caller_driven_agent_is_driven_by_its_loop(make_agent):
    near, far = make_agent("near", progress="caller"), make_agent("far")
    memory = np.zeros((2, 4096), np.uint8)
    region = near.register(memory, access="rw")
    back = far.register(memory, access="rw")
    peer = near.add_peer(far.metadata())

    async def main():
        mine = near.block_list((region.address, 4096))
        theirs = peer.block_list((back.address + 4096, 4096))
        memory[0] = 7
        await near.write(mine, None, theirs, None, notice=b"there", backend="tcp")
        waiting = asyncio.create_task(anext(near.notices()))
        answer = await anext(far.notices())
        await asyncio.to_thread(far.peer(answer.peer).send, b"and back")
        return (await waiting).data

    assert run(main()) == b"and back"
    assert (memory[1] == 7).all()
    near.close()  # nothing drives it any more: far would wait until it detaches from its region


def test_failure_is_raised_where_it_is_awaited(make_agent):
    pair = Pair(make_agent)

    async def main():
        move = pair.write(backend="tcp")
        await move
        pair.their_region.deregister()
        move.post()
        with pytest.raises(towline.Error):
            await move

    try:
        run(main())
    except towline.Error as error:  # the post itself may be refused
        assert error.status in (towline.Status.STALE, towline.Status.NOT_FOUND)


@pytest.mark.parametrize("awaitable", [True, False], ids=["in the loop", "outside the loop"])
def test_cancelling_the_task_cancels_the_transfer(make_agent, awaitable):
    """Nobody drives the far agent, so that the transfer can't end by itself."""
    near, far = make_agent("near"), make_agent("far", progress="caller")
    mine, theirs = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    regions = near.register(mine, access="rw"), far.register(theirs, access="rw")
    peer = near.add_peer(far.metadata())
    my_blocks = near.block_list(mine, page_dim=0)
    their_blocks = peer.block_list(towline.Blocks(regions[1].address, theirs.nbytes))

    async def main():
        making = asyncio.create_task(
            asyncio.to_thread(near.read, my_blocks, None, their_blocks, None, backend="tcp", awaitable=awaitable)
        )
        while not making.done():
            far.progress()
            await asyncio.sleep(0)
        move = await making
        waiting = asyncio.ensure_future(_await(move))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert move.result.status in (towline.Status.CANCELLED, towline.Status.OK)
        fencing = asyncio.create_task(asyncio.to_thread(move.wait_fenced, "local", TIMEOUT))
        while not fencing.done():
            far.progress()
            await asyncio.sleep(0)
        await fencing

    run(main())
    far.close()  # nobody drives it any more: near would wait for it


async def _await(move):
    return await move


def test_loop_keeps_no_agent_open():
    async def main():
        agent = towline.Agent("short", listen="none")
        alive = weakref.ref(agent)
        memory = bytearray(4096)
        region = agent.register(memory, access="rw")
        blocks = agent.block_list((region.address, 4096))
        await agent.write(blocks, None, blocks, None)
        waiting = asyncio.ensure_future(anext(agent.notices()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        del agent, region, blocks, waiting
        gc.collect()
        return alive

    alive = run(main())
    gc.collect()
    assert alive() is None

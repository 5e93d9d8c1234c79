"""Awaiting copies, connections, counters and so on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref

import numpy as np
import pytest

import towline
from conftest import BACKENDS, TIMEOUT, Pair, Server, run_script
from towline import Status


def run(coroutine):
    """Runs it with a deadline, and with asyncio's own checks. The executor's threads are refused."""

    async def main():
        def refuse(*_):
            raise AssertionError("a thread of the executor was asked for")

        asyncio.get_running_loop().run_in_executor = refuse  # type: ignore[method-assign]
        return await asyncio.wait_for(coroutine, TIMEOUT)

    return asyncio.run(main(), debug=True)


async def rounds() -> None:
    """Lets tasks come to where they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


class Held:
    """A peer that nobody drives: what was asked of it does not end before `driving`."""

    def __init__(self, make_agent) -> None:
        self.near = make_agent("near", backends="tcp")
        self.far = make_agent("far", backends="tcp", progress="caller")
        self.mine, self.theirs = np.zeros(1 << 20, np.uint8), np.ones(1 << 20, np.uint8)
        self.regions = self.near.register(self.mine), self.far.register(self.theirs, access="rw")
        self.peer = self.near.add_peer(self.far.metadata())
        self.my_blocks = self.near.block_list(self.mine, page_dim=0)
        self.their_blocks = self.peer.block_list(towline.Blocks(self.regions[1].address, 1, (1 << 20, 1)))
        with self.driving():
            self.plan = self.near.plan(self.their_blocks, self.my_blocks)

    @contextlib.contextmanager
    def driving(self):
        over = threading.Event()

        def drive() -> None:
            while not over.is_set():
                self.far.progress()
                time.sleep(0)

        thread = threading.Thread(target=drive)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        self.far.close()  # nobody drives it any more: near would wait for it
        self.near.close()


@pytest.fixture
def held(make_agent):
    held = Held(make_agent)
    yield held
    held.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_posts_are_awaited(make_agent, server, backend):
    agent = make_agent("client", backends=backend)

    async def main():
        peer = await agent.connect_async(server.address)
        pages = np.zeros((server.pages, server.page_bytes), np.uint8)
        region = agent.register(pages)
        plan = agent.plan(peer.block_list(server.blocks), agent.block_list(pages))
        posts = [await plan.post_async(i, i) for i in range(server.pages)]
        assert all(post.awaitable for post in posts)
        results = await asyncio.gather(*posts)
        assert [result.status for result in results] == [Status.OK] * server.pages
        assert (await posts[0]).nbytes == server.page_bytes  # the outcome stays
        for _ in range(50):
            await (await agent.copy_async(plan.from_[0], plan.to[0]))
        return pages, region

    pages, _ = run(main())
    assert np.array_equal(pages.view("u4"), server.ask("pages"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_post_made_before_the_loop_is_awaited(make_agent, server, backend):
    agent = make_agent("client", backends=backend)
    peer = agent.add_peer(server.blob)
    pages = np.zeros((server.pages, server.page_bytes), np.uint8)
    region = agent.register(pages)
    post = agent.copy(peer.block_list(server.blocks), agent.block_list(pages))
    group = agent.group(timeout=TIMEOUT)
    group.copy(peer.block_list(server.blocks), agent.block_list(pages))
    group.close()
    assert not post.awaitable

    async def main():
        await group
        return await post

    assert run(main()).status == Status.OK
    assert np.array_equal(pages.view("u4"), server.ask("pages"))
    assert region.nbytes == pages.nbytes


def test_a_loop_wakes_for_what_takes_time(held):
    async def main():
        posts = [held.plan.post(page, page) for page in range(3)]
        group = held.near.group(timeout=TIMEOUT)
        await group.add_async(held.plan, 7, 7)
        group.close()
        waiting = asyncio.gather(*posts, _await(group))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.05)
        with held.driving():
            await waiting
            await group.wait_fenced_async("both", TIMEOUT)
        assert held.mine[[0, 1, 2, 7]].all() and not held.mine[[3, 6]].any()

    run(main())


@pytest.mark.parametrize("awaitable", [True, False], ids=["told", "not told"])
def test_cancelling_the_task_cancels_the_post_and_waits_for_its_fence(held, awaitable):
    async def main():
        post = held.plan.post(awaitable=awaitable)
        task = asyncio.ensure_future(post)
        await rounds()
        task.cancel()
        while post._look() == Status.IN_PROGRESS:
            await asyncio.sleep(0)
        with held.driving():
            with pytest.raises(asyncio.CancelledError):
                await task
            post.wait_fenced("local", 0)  # raises unless it holds
            with pytest.raises(towline.Cancelled):
                post.poll()

    run(main())


def test_what_is_no_longer_awaited_ends_by_itself(held):
    """Its event finds nobody, and the loop goes on."""

    async def main():
        counter, post = held.near.counter(), held.plan.post(0, 0)
        waits = [counter.wait_async(1), post.wait_fenced_async("both"), held.peer.refresh_async(TIMEOUT)]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        await rounds()
        for task in tasks:
            task.cancel()
        assert {type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)} == {asyncio.CancelledError}
        with held.driving():
            await held.plan.post(1, 1)
            held.near.add_peer(held.near.metadata()).add(counter.key, 1)
            assert await counter.wait_async(1) == 1
            await held.peer.refresh_async(TIMEOUT)
            await post

    run(main())


@pytest.mark.parametrize("what", ["send", "add", "credit", "plan", "copy"])
def test_a_loop_goes_on_while_a_peer_is_connected(make_agent, what):
    """The peer does not answer before it is driven, which happens only after the loop has gone on."""
    held = Held.__new__(Held)
    held.near, held.far = make_agent("near", backends="tcp"), make_agent("far", backends="tcp", progress="caller")
    mine, theirs = np.zeros(4096, np.uint8), np.ones(4096, np.uint8)
    regions = held.near.register(mine), held.far.register(theirs, access="rw")
    peer = held.near.add_peer(held.far.metadata())
    from_, to = peer.block_list((regions[1].address, 4096)), held.near.block_list((regions[0].address, 4096))

    async def main():
        call = {
            "send": lambda: peer.send_async(b"x"),
            "add": lambda: peer.add_async(4711),
            "credit": lambda: peer.credit_async(),
            "plan": lambda: held.near.plan_async(from_, to),
            "copy": lambda: held.near.copy_async(from_, to),
        }[what]()
        waiting = asyncio.ensure_future(call)
        await rounds()
        assert not waiting.done()
        with held.driving():
            made = await waiting
            if what == "copy":
                await made

    run(main())
    held.close()


def test_waits_that_give_up_are_not_yet(held):
    async def main():
        counter = held.near.counter()
        with pytest.raises(towline.NotYet, match="has not reached 3 yet"):
            await counter.wait_async(3, 0.01)
        post = held.plan.post(0, 0)
        for _ in range(3):
            with pytest.raises(towline.NotYet, match="not fenced yet"):
                await post.wait_fenced_async("both", 0.01)
        assert len(held.near._hub()._shared) == 1, "the three wait for one event"
        with held.driving():
            await post

    run(main())


def test_closing_the_agent_ends_every_wait(held):
    async def main():
        near = held.near
        watched = near.notices(tag=9)
        waits = {
            "post": held.plan.post(0, 0),
            "counter": near.counter().wait_async(1),
            "refresh": held.peer.refresh_async(TIMEOUT),
            "connect": near.connect_async(held.far.address, TIMEOUT),
            "notice": anext(near.notices()),
            "tagged": anext(watched),
        }
        tasks = {name: asyncio.ensure_future(_await(wait)) for name, wait in waits.items()}
        await rounds()
        held.far.close()
        await near.close_async()
        for name, task in tasks.items():
            with pytest.raises(StopAsyncIteration if name in ("notice", "tagged") else towline.Error):
                await _unwrapped(task)
        with pytest.raises(towline.Closed):
            await near.connect_async(held.far.address)

    run(main())


@pytest.mark.parametrize("round", range(5))
def test_several_loops_wait_at_once(pair, round):
    """From the first wait of the agents on."""
    failures = []
    begin = threading.Barrier(4)

    def work(index: int) -> None:
        async def main():
            begin.wait()
            for _ in range(50):
                await pair.near.copy(pair.my_blocks[index], pair.their_blocks[index])
                counter = pair.far.counter()
                waiting = asyncio.ensure_future(counter.wait_async(1))
                await asyncio.sleep(0)
                await pair.peer.add_async(counter.key)
                assert await waiting == 1

        try:
            asyncio.run(asyncio.wait_for(main(), TIMEOUT))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not failures
    assert np.array_equal(pair.mine[:4], pair.theirs[:4])


def test_a_loop_closed_under_way_holds_up_no_other(held):
    """One loop ends while its tasks wait; the next one gets its own events, and the post of the first."""
    post = None

    async def leave():
        nonlocal post
        post = held.plan.post(0, 0)
        tasks = [asyncio.ensure_future(wait) for wait in (_await(post), held.near.counter().wait_async(1))]
        await rounds()
        return tasks

    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(leave())
    loop.close()  # with its tasks pending
    for task in tasks:
        task._log_destroy_pending = False

    async def main():
        with held.driving():
            assert (await post).status == Status.OK
            await held.plan.post(1, 1)

    run(main())


def test_agent_serves_one_loop_after_another(pair):
    async def main():
        await pair.near.copy(pair.my_blocks, pair.their_blocks)
        await pair.peer.send_async(b"again")

    for _ in range(3):
        run(main())
        assert pair.far.receive(TIMEOUT).data == b"again"


def test_caller_driven_agent_is_driven_by_its_loop(make_agent):
    near, far = make_agent("near", progress="caller", backends="tcp"), make_agent("far", backends="tcp")
    memory = np.zeros((2, 4096), np.uint8)
    region = near.register(memory, access="rw")
    back = far.register(memory, access="rw")
    peer = near.add_peer(far.metadata())

    async def main():
        mine = near.block_list((region.address, 4096))
        theirs = peer.block_list((back.address + 4096, 4096))
        memory[0] = 7
        await near.copy(mine, theirs, notice=b"there")
        waiting = asyncio.create_task(anext(near.notices()))
        answer = await anext(far.notices())
        await answer.peer.send_async(b"and back")
        return (await waiting).data

    assert run(main()) == b"and back"
    assert (memory[1] == 7).all()
    near.close()  # nothing drives it any more: far would wait until it detaches from its region


def test_failure_is_raised_where_it_is_awaited(make_agent):
    pair = Pair(make_agent, backends="tcp")

    async def main():
        plan = pair.near.plan(pair.my_blocks, pair.their_blocks)
        await plan.post()
        await pair.their_region.deregister_async(TIMEOUT)
        with pytest.raises(towline.Error) as raised:
            await plan.post()
        assert raised.value.status in (Status.STALE, Status.NOT_FOUND)
        with pytest.raises(towline.Error):
            await pair.near.connect_async("127.0.0.1:1", 5)

    run(main())


def test_connecting_waits_for_its_deadline_and_no_longer(make_agent):
    import socket

    agent = make_agent("near")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "%s:%d" % silent.getsockname()

        async def main():
            begun = time.monotonic()
            with pytest.raises(towline.Error):
                await agent.connect_async(address, 0.2)
            return time.monotonic() - begun

        assert 0.15 <= run(main()) < TIMEOUT / 2
        begun = time.monotonic()
        with pytest.raises(towline.Error):
            agent.connect(address, 0.2)
        assert 0.15 <= time.monotonic() - begun < TIMEOUT / 2


def test_a_region_is_deregistered_once_nobody_uses_it(held):
    async def main():
        post = held.plan.post(0, 0)
        owner = weakref.ref(held.mine)
        held.mine = None
        region = held.regions[0]
        with pytest.raises(towline.NotYet):
            await region.deregister_async(0.01)
        assert repr(region) == "Region(deregistered)" and owner() is not None
        with pytest.raises(towline.Busy):
            region.deregister()
        waiting = asyncio.ensure_future(region.deregister_async())
        await rounds()
        assert not waiting.done(), "it waits for the one that is under way"
        with held.driving():
            await asyncio.gather(post, return_exceptions=True)
            await waiting
        await region.deregister_async()  # nothing is left to do
        assert region.owner is None

    run(main())


def test_files_are_committed(make_agent, tmp_path):
    agent = make_agent(listen="none")

    async def main():
        file = agent.register_storage(tmp_path / "new", replace=True, nbytes=4096)
        source = agent.register(np.full(4096, 7, np.uint8))
        await agent.copy(agent.block_list((source.address, 4096)), agent.block_list(file.blocks(0, 4096)))
        assert not (tmp_path / "new").exists()
        await file.commit_async()
        assert (tmp_path / "new").read_bytes() == bytes([7]) * 4096
        with pytest.raises(towline.Error):
            await source.commit_async()

    run(main())


def test_sending_waits_for_credit(held):
    """Nobody takes the notices: credit runs out, and comes back when somebody does."""

    async def main():
        sent = 0
        with pytest.raises(towline.Again):
            while True:
                await held.peer.send_async(bytes(32768), timeout=0.05)
                sent += 1
        with pytest.raises(towline.NotYet):
            await held.peer.credit_async(0.01)
        waiting = asyncio.ensure_future(held.peer.send_async(b"last"))
        with held.driving():
            got = 0
            while (notice := await asyncio.wait_for(anext(held.far.notices()), TIMEOUT)).data != b"last":
                got += 1
            await waiting
            await held.peer.credit_async()
        assert got == sent

    run(main())


def test_peers_health_is_iterated(make_agent):
    server = Server(pages=4, backends="tcp")
    agent = make_agent("client", backends="tcp")

    async def main():
        changes = agent.health_changes()
        peer = await agent.connect_async(server.address)
        await peer.credit_async()
        assert await anext(changes) == (peer, "alive")
        server.process.kill()
        seen = []
        async for changed, health in changes:
            assert changed == peer
            seen.append(health)
            if health == "lost":
                break
        waiting = asyncio.ensure_future(anext(changes))
        await rounds()
        await agent.close_async()
        with pytest.raises(StopAsyncIteration):
            await _unwrapped(waiting)
        return seen

    assert run(main())[-1] == "lost"
    server.process.join(TIMEOUT)


def test_loop_keeps_no_agent_open():
    async def main():
        agent = towline.Agent("short", listen="none")
        alive = weakref.ref(agent)
        memory = bytearray(4096)
        region = agent.register(memory, access="rw")
        blocks = agent.block_list((region.address, 4096))
        await agent.copy(blocks, blocks)
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


def test_a_forked_child_is_told_and_its_parent_goes_on():
    done = run_script(
        """
        import asyncio, os, sys, towline
        agent = towline.Agent("parent", listen="127.0.0.1:0", backends="tcp")
        memory = bytearray(1 << 16)
        region = agent.register(memory, access="rw")
        blocks = agent.block_list((region.address, 1 << 16))
        itself = agent.add_peer(agent.metadata())
        counter = agent.counter()

        async def waits():
            post = agent.copy(blocks, blocks)
            await post
            waiting = asyncio.ensure_future(counter.wait_async(1))
            await asyncio.sleep(0)
            if (child := os.fork()) == 0:
                return None
            await itself.add_async(counter.key)
            assert await waiting == 1
            return child

        async def in_child():
            for wait in (
                lambda: counter.wait_async(5), lambda: agent.connect_async("127.0.0.1:1"), lambda: itself.send_async(b"x"),
                lambda: anext(agent.notices()), lambda: region.deregister_async(), lambda: itself.refresh_async(),
            ):
                try:
                    await wait()
                    os._exit(1)
                except towline.Forked:
                    pass

        loop = asyncio.new_event_loop()
        child = loop.run_until_complete(waits())
        if child is None:
            asyncio.events._set_running_loop(None)
            asyncio.new_event_loop().run_until_complete(in_child())
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        loop.run_until_complete(itself.send_async(b"still here"))
        print(agent.receive(10).data)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'still here'\n", "")


def test_a_forked_child_that_goes_on_in_its_parents_loop_takes_nothing_from_it():
    """A selector is shared with the child. What the child removes there, the parent would wait for in vain."""
    done = run_script(
        """
        import asyncio, os, select, towline
        agent = towline.Agent("parent", listen="127.0.0.1:0", backends="tcp")
        itself = agent.add_peer(agent.metadata())
        itself.send(b"connected")
        counter = agent.counter()
        there, told = os.pipe()

        async def waits():
            waiting = asyncio.ensure_future(counter.wait_async(1))
            await asyncio.sleep(0)
            if (child := os.fork()) == 0:
                os.read(there, 1)
                for _ in range(3):  # each looks at the descriptors, and the event is at one of both processes
                    await asyncio.sleep(0)
                return 0
            itself.add(counter.key)
            descriptor = agent._hub()._events.fd
            assert select.select([descriptor], [], [], 20)[0]
            os.write(told, b"!")
            assert os.waitpid(child, 0)[1] == 0
            return await asyncio.wait_for(waiting, 20)

        loop = asyncio.new_event_loop()
        if loop.run_until_complete(waits()) == 0:
            os._exit(0)
        print("told")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")


def test_a_forked_child_waits_for_no_lock_of_its_parents_threads():
    done = run_script(
        """
        import asyncio, gc, os, signal, threading, towline
        agents = [towline.Agent(name, listen="127.0.0.1:0", backends="tcp") for name in ("seen", "unseen")]
        counters = [agent.counter() for agent in agents]
        locked, leave = threading.Event(), threading.Event()

        def hold(hub):
            with hub._lock, hub._events._lock, agents[1]._making_hub:
                locked.set()
                leave.wait(30)

        async def waits():
            waiting = asyncio.ensure_future(counters[0].wait_async(1))
            await asyncio.sleep(0)
            holder = threading.Thread(target=hold, args=(agents[0]._hub(),))
            holder.start()
            locked.wait(30)
            if (child := os.fork()) == 0:
                signal.alarm(20)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                return None
            leave.set()
            holder.join()
            await agents[0].add_peer(agents[0].metadata()).add_async(counters[0].key)
            assert await waiting == 1
            return child

        loop = asyncio.new_event_loop()
        child = loop.run_until_complete(waits())
        if child is None:
            asyncio.events._set_running_loop(None)
            told = 0
            for counter in counters:
                try:
                    asyncio.new_event_loop().run_until_complete(counter.wait_async(2))
                except towline.Forked:
                    told += 1
            del agents, counter, counters
            gc.collect()
            os._exit(0 if told == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def _await(what):
    return await what


async def _unwrapped(task):
    """Its result. A task that ends by StopAsyncIteration gives a RuntimeError of it."""
    try:
        return await task
    except RuntimeError as error:
        raise (error.__cause__ if isinstance(error.__cause__, StopAsyncIteration) else error) from None

"""Many threads of the application at once, with the GIL and in a Python without one."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from conftest import TIMEOUT, Pair, run_script

import towline

THREADS = 6
EACH = 16  # pages of a thread


@pytest.fixture
def pair(make_agent):
    return Pair(make_agent, pages=THREADS * EACH)


def together(work, threads: int = THREADS) -> None:
    """Runs work(0), work(1), .. in threads that begin at once, and raises what one of them raised."""
    begin = threading.Barrier(threads)
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            begin.wait(TIMEOUT)
            work(index)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(2 * TIMEOUT)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def pages_of(index: int) -> range:
    return range(index * EACH, (index + 1) * EACH)


def test_importing_leaves_the_gil_off_where_it_is_off():
    """Python turns the GIL on, and warns, when a module does not say that it can do without."""
    code = """
    import sys, warnings
    warnings.simplefilter("error")
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    before = enabled()
    import towline, towline.collectives, towline.fabric
    assert enabled() == before
    """
    done = run_script(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_posts_of_one_plan_by_many_threads(pair, backend):
    plan = pair.near.plan(pair.their_blocks, pair.my_blocks, backend=backend)

    def work(index: int) -> None:
        for turn in range(60):
            own = np.roll(np.array(pages_of(index), np.uint32), turn)
            plan.post(own, own[::-1].copy()).wait(TIMEOUT)

    together(work)
    for index in range(THREADS):
        own = np.roll(np.array(pages_of(index)), 59)
        assert np.array_equal(pair.mine[own[::-1]], pair.theirs[own])


def test_copies_of_the_same_lists_by_many_threads(pair):
    def work(index: int) -> None:
        for page in list(pages_of(index)) * 4:
            pair.near.copy(pair.their_blocks[page], pair.my_blocks[page]).wait(TIMEOUT)

    together(work)
    assert np.array_equal(pair.mine, pair.theirs)


def test_one_post_awaited_by_many_threads(pair):
    for _ in range(20):
        post = pair.near.copy(pair.their_blocks, pair.my_blocks)
        together(lambda _, post=post: post.wait(TIMEOUT))
        assert post.done()


def test_event_loops_of_many_threads_share_an_agent(pair):
    async def pull(index: int) -> None:
        for page in pages_of(index):
            await pair.near.copy(pair.their_blocks[page], pair.my_blocks[page])

    together(lambda index: asyncio.run(pull(index)))
    assert np.array_equal(pair.mine, pair.theirs)


def test_each_notice_comes_to_one_thread(pair):
    total = THREADS * 40
    seen: list[bytes] = []

    def work(index: int) -> None:
        if index % 2 == 0:
            for number in range(total // (THREADS // 2)):
                pair.peer.send(f"{index} {number}".encode())
            return
        while len(seen) < total:
            notice = pair.far.receive(0.01)
            if notice is not None:
                seen.append(notice.data)

    together(work)
    assert len(seen) == len(set(seen)) == total


def test_objects_come_and_go_in_many_threads(pair):
    def work(index: int) -> None:
        for _ in range(30):
            array = np.full((4, 4096), index, np.uint8)
            with pair.near.register(array):
                own = pair.near.block_list(array)
                peer = pair.near.find_peer("far")
                assert peer.name == "far"
                pair.near.copy(own, pair.their_blocks[list(pages_of(index))[:4]]).wait(TIMEOUT)
                assert "far" in [known.name for known in pair.near.peers]
            counter = pair.near.counter(index)
            assert counter.value == index

    together(work)
    for index in range(THREADS):
        assert (pair.theirs[list(pages_of(index))[:4]].view(np.uint8) == index).all()


def test_an_agent_is_closed_under_the_feet_of_others(make_agent):
    for _ in range(5):
        pair = Pair(make_agent, pages=THREADS * EACH)
        plan = pair.near.plan(pair.their_blocks, pair.my_blocks)
        begun = threading.Semaphore(0)

        def work(index: int) -> None:
            if index == 0:
                for _ in range(THREADS - 1):
                    assert begun.acquire(timeout=TIMEOUT)
                pair.near.close()
                return
            own = pages_of(index)
            try:
                while True:
                    plan.post(own, own).wait(TIMEOUT)
                    begun.release()
                    pair.peer.send(b"?")
                    pair.near.receive(0)
            except (towline.Closed, towline.Cancelled, towline.Again):
                begun.release()

        together(work)
        with pytest.raises(towline.Closed):
            pair.near.metadata()


# A part of a script in which `owner` has given a Cache to a reader.
A_READER_OF_THE_CACHE = """
        reader = towline.Agent("reader", listen="127.0.0.1:0", backends="shm", progress="caller")
        region = owner.register(Cache(1 << 20), access="read")
        mine = bytearray(1 << 20)
        kept = reader.register(mine)
        peer = reader.connect(owner.address)
        theirs = peer.block_list([(region.address, 4096)])
        reader.copy(theirs, reader.block_list([(kept.address, 4096)])).result(timeout=20)
        del region  # the reader, which makes no progress, may reach it still
    """


def test_the_interpreter_ends_after_an_agent_that_a_finalizer_closes():
    code = """
        import threading, towline
        finalized = threading.Event()
        class Cache(bytearray):
            def __del__(self):
                owner.close()
                finalized.set()
        class Owner(towline.Agent):
            def close(self):
                beside = threading.current_thread().name == "towline-close"
                if beside:
                    threading.main_thread().join()  # the program has ended, and the interpreter is about to
                super().close()
                if beside:
                    print("closed", flush=True)
        owner = Owner("owner", listen="127.0.0.1:0", backends="shm")
    """
    code += A_READER_OF_THE_CACHE
    code += """
        reader.close()
        assert finalized.wait(20)
    """
    done = run_script(code)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


@pytest.mark.parametrize("how", ["while it runs", "while it closes"])
def test_a_finalizer_of_registered_memory_may_close_the_agent(how):
    code = f"""
        import threading, towline
        finalized = threading.Event()
        started = []
        start = threading.Thread.start
        threading.Thread.start = lambda thread: (started.append(thread.name), start(thread))
        class Cache(bytearray):
            def __del__(self):
                owner.close()
                finalized.set()
        owner = towline.Agent("owner", listen="127.0.0.1:0", backends="shm")
    """
    code += A_READER_OF_THE_CACHE
    code += f"""
        if {how == "while it closes"}:
            owner.close()
        else:
            reader.close()
        assert finalized.wait(20)
        # What closes already needs no thread, which an interpreter that ends could not start.
        assert started.count("towline-close") == {1 if how == "while it runs" else 0}, started
        for thread in threading.enumerate():
            if thread.name == "towline-close":
                thread.join()
        print("closed" if owner.closed else "open")
    """
    done = run_script(code)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr

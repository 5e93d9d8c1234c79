"""Agents that find one another in an etcd."""

from __future__ import annotations

import array
import asyncio
import concurrent.futures
import shutil
import socket
import subprocess
import time

import pytest

import towline
from towline import collectives
from conftest import TIMEOUT


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    """The address of an etcd that runs for these tests."""
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd here: install etcd-server")
    folder = tmp_path_factory.mktemp("etcd")
    url, peer_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = ["etcd", "--data-dir", folder / "data", "--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
    command += ["--initial-cluster", f"default={peer_url}", "--log-level", "error"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield url.removeprefix("http://")
    process.kill()
    process.wait()


@pytest.fixture
def address(etcd, request):
    return f"etcd://{etcd}/{request.node.name}"


def run(main):
    return asyncio.run(asyncio.wait_for(main, TIMEOUT))


def test_agents_meet_by_name(make_agent, address):
    near, far = make_agent("near"), make_agent("far")
    memory = bytearray(8192)
    region = far.register(memory, access="rw")

    async def main():
        meeting = asyncio.ensure_future(near.connect_async(f"{address}/far"))  # before it is published
        await far.publish(address)
        peer = await meeting
        assert (peer.name, peer.incarnation) == ("far", far.incarnation)
        assert [known.key for known in peer.regions()] == [region.key]
        await far.unpublish(address)
        with pytest.raises(towline.NotFound, match="far/metadata"):
            await near.directory(address).fetch("far")

    run(main())


def test_a_name_that_is_published_late_is_waited_for(make_agent, address):
    """Later than the first of the attempts that connecting consists of, which end in NotFound."""
    near, far = make_agent("near"), make_agent("far")

    async def main():
        meeting = asyncio.ensure_future(near.connect_async(f"{address}/far"))
        done, _ = await asyncio.wait({meeting}, timeout=1.3)
        assert not done
        await far.publish(address)
        assert (await meeting).incarnation == far.incarnation

    run(main())


def test_a_server_that_does_not_answer_is_waited_for(make_agent):
    """An attempt in which no server answered ends in Unreachable."""
    agent = make_agent()
    with pytest.raises(towline.Unreachable):
        agent.connect(f"etcd://127.0.0.1:{free_port()}/late/far", timeout=0.2)
    with socket.socket() as silent:  # takes connections and answers nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        with pytest.raises(towline.Unreachable):
            agent.connect(f"etcd://127.0.0.1:{silent.getsockname()[1]}/late/far", timeout=2.5)
        assert time.monotonic() - started >= 2.4


def test_keys_are_put_got_deleted_and_watched(make_agent, address):
    with make_agent().directory(address) as directory:
        watch = directory.watch("k/")
        assert watch.next(TIMEOUT) == ("synced", "", b"")
        directory.put("k/1", b"\0one").wait()
        assert watch.next(TIMEOUT) == ("put", "k/1", b"\0one")
        assert directory.get("k/1").wait() == b"\0one"
        directory.put("k/2", b"two", leased=True).wait(TIMEOUT)
        assert directory.get("k/", prefix=True).wait() == {"k/1": b"\0one", "k/2": b"two"}
        with pytest.raises(towline.Error) as refused:
            directory.put("k/1", b"again", create=True).wait()
        assert refused.value.status == towline.Status.ALREADY_EXISTS
        directory.delete("k/1").wait()
        assert watch.next(TIMEOUT) == ("put", "k/2", b"two")
        assert watch.next(TIMEOUT) == ("gone", "k/1", b"")
        assert watch.next(0) is None
    with pytest.raises(towline.Closed):
        directory.get("k/1")


def test_watch_is_iterated_by_an_event_loop(make_agent, address):
    agent = make_agent()

    async def main():
        directory = agent.directory(address)
        await directory.put("key", b"value")
        # A call and a watch keep their directory open.
        assert await agent.directory(address + "/other").get("", prefix=True) == {}
        return [event async for event in _first_two(agent.directory(address).watch())]

    assert run(main()) == [("put", "key", b"value"), ("synced", "", b"")]


async def _first_two(watch):
    seen = 0
    async for event in watch:
        yield event
        seen += 1
        if seen == 2:
            return


def test_closing_the_agent_ends_calls_and_watches(make_agent, address):
    agent = make_agent()
    directory = agent.directory(address)
    waiting, watch = directory.get("never", wait=True), directory.watch()
    assert not waiting.done
    agent.close()
    with pytest.raises(towline.Closed):
        waiting.wait(TIMEOUT)
    with pytest.raises(towline.Closed):
        while watch.next(TIMEOUT) is not None:
            pass


def test_what_is_no_directory_says_why(make_agent):
    with pytest.raises(towline.NotFound, match="libtowline_nothing.so"):
        make_agent().directory("nothing://host")
    with pytest.raises(towline.InvalidArgument, match="etcd.user"):
        make_agent().directory("etcd://user:secret@host")


def test_ranks_of_other_sizes_are_named_in_a_directory(make_agent, address):
    agents = [make_agent(f"rank{rank}") for rank in range(2)]

    def refusal(rank: int) -> str:
        with pytest.raises(towline.TimedOut) as raised:
            collectives.Communicator(rank=rank, size=2 + rank, bootstrap=address, agent=agents[rank], timeout=5)
        return str(raised.value)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first, second = threads.map(refusal, range(2))
    assert "rank 1 was given 3 ranks" in first
    assert "rank 0 was given 2 ranks" in second


def test_ranks_meet_in_a_directory(make_agent, address):
    agents = [make_agent(f"rank{rank}") for rank in range(3)]

    def serve(rank: int) -> list[float]:
        values = array.array("f", [rank + 1.0] * 100)
        with collectives.Communicator(rank=rank, size=3, bootstrap=address, agent=agents[rank], timeout=TIMEOUT) as world:
            world.all_reduce(values)
        return list(values)

    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        assert list(threads.map(serve, range(3))) == [[6.0] * 100] * 3

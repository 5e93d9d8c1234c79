"""Two agents, in this process and in two."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import towline

TIMEOUT = 30.0
BACKENDS = ["shm", "tcp"]


@pytest.fixture
def make_agent():
    """Makes agents that are closed at the end of the test."""
    agents = []

    def make(name: str = "agent", **options) -> towline.Agent:
        options.setdefault("listen", "127.0.0.1:0")
        options.setdefault("default_timeout", TIMEOUT)
        agents.append(towline.Agent(name, **options))
        return agents[-1]

    yield make
    for agent in agents:
        agent.close()


class Pair:
    """An agent with `pages` local pages and a peer in this process with as many, every page stamped."""

    def __init__(self, make_agent, pages: int = 16, page_bytes: int = 4096, **options) -> None:
        self.near = make_agent("near", **options)
        self.far = make_agent("far", **options)
        self.mine = stamped(pages, page_bytes, 0)
        self.theirs = stamped(pages, page_bytes, 1000)
        self.my_region = self.near.register(self.mine, access="rw")
        self.their_region = self.far.register(self.theirs, access="rw")
        self.peer = self.near.add_peer(self.far.metadata())
        self.my_blocks = self.near.block_list(self.mine)
        self.their_blocks = self.peer.block_list(
            towline.Blocks(self.theirs.ctypes.data, page_bytes, (pages, page_bytes))
        )

    def write(self, mine=None, theirs=None, **options) -> towline.Transfer:
        return self.near.transfer(self.my_blocks[mine], self.their_blocks[theirs], **options)

    def read(self, mine=None, theirs=None, **options) -> towline.Transfer:
        return self.near.transfer(self.their_blocks[theirs], self.my_blocks[mine], **options)


@pytest.fixture
def pair(make_agent):
    return Pair(make_agent)


def stamped(pages: int, page_bytes: int, first: int) -> np.ndarray:
    """Pages that hold their number, from `first` on, in every word."""
    numbers = np.arange(first, first + pages, dtype=np.uint32)
    return np.repeat(numbers[:, None], page_bytes // 4, axis=1)


def _serve(pipe, pages: int, page_bytes: int, options: dict) -> None:
    """The far process: owns pages, tells about them, and answers commands until the pipe ends."""
    agent = towline.Agent("server", listen="127.0.0.1:0", default_timeout=TIMEOUT, **options)
    memory = agent.allocate(pages * page_bytes)
    array = memory.numpy("uint32", (pages, -1))
    array[:] = stamped(pages, page_bytes, 1000)
    region = agent.register(memory, access="rw")
    counter = agent.counter()
    pipe.send((agent.address, agent.metadata(), region.address, counter.key))
    while (command := pipe.recv()) is not None:
        if command == "pages":
            pipe.send(array.copy())
        elif command == "receive":
            notice = agent.receive(timeout=TIMEOUT)
            pipe.send((notice.peer.name, notice.data))
        elif command == "counter":
            pipe.send(counter.wait(5, timeout=TIMEOUT))
        elif isinstance(command, tuple):  # send a notice back
            agent.find_peer(command[0]).send(command[1])
            pipe.send(None)
    del array
    agent.close()


class Server:
    """A far process and the pipe to it."""

    def __init__(self, pages: int = 64, page_bytes: int = 4096, **options) -> None:
        context = multiprocessing.get_context("spawn")
        self.pages, self.page_bytes = pages, page_bytes
        self.pipe, far_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(far_end, pages, page_bytes, options), daemon=True)
        self.process.start()
        far_end.close()
        self.address, self.blob, self.memory_address, self.counter_key = self.ask(None)
        self.blocks = towline.Blocks(self.memory_address, page_bytes, (pages, page_bytes))

    def ask(self, command):
        if command is not None:
            self.pipe.send(command)
        assert self.pipe.poll(TIMEOUT), "the far process does not answer"
        return self.pipe.recv()

    def stop(self) -> int:
        self.pipe.send(None)
        self.process.join(TIMEOUT)
        return self.process.exitcode


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    assert server.stop() == 0


def run_script(code: str, *, timeout: float = TIMEOUT) -> subprocess.CompletedProcess:
    """Runs code in a new interpreter, which does not warn of every fork as Python does from 3.12 on."""
    return subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )

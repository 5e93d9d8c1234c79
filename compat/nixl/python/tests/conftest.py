"""Agents in this process and in others."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from nixl import nixl_agent, nixl_agent_config

TIMEOUT = 30.0
TRANSPORTS = ["", "tcp"]  # as TOWLINE_NIXL_BACKENDS: the best one, and one over sockets
_numbers = itertools.count()


def fresh(name: str) -> str:
    """A name that no other test's agent has."""
    return f"{name}-{os.getpid()}-{next(_numbers)}"


def eventually(look, what: str = "what the test waits for"):
    """Calls `look` until it gives something true, and returns that."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        if result := look():
            return result
    pytest.fail(f"{what} did not happen within {TIMEOUT} s")


def finish(agent: nixl_agent, handle, state: str) -> None:
    """Waits for a request that `state` says the start of to end well."""
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    assert state == "DONE"


def stamped(pages: int, page_bytes: int, first: int) -> np.ndarray:
    """Pages that hold their number, from `first` on, in every word."""
    numbers = np.arange(first, first + pages, dtype=np.uint32)
    return np.repeat(numbers[:, None], page_bytes // 4, axis=1)


def rows(array: np.ndarray, pages: int | None = None) -> np.ndarray:
    """The N x 3 array that describes an array's pages, one per row of it."""
    return rows_at(array.ctypes.data, array.shape[0], array.nbytes // array.shape[0])


def rows_at(address: int, pages: int, page_bytes: int) -> np.ndarray:
    table = np.zeros((pages, 3), dtype=np.uint64)
    table[:, 0] = address + np.arange(pages, dtype=np.uint64) * np.uint64(page_bytes)
    table[:, 1] = page_bytes
    return table


def register(agent: nixl_agent, array: np.ndarray):
    return agent.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM")


@pytest.fixture
def make_agent():
    """Makes agents under fresh names."""

    def make(name: str = "agent", **config) -> nixl_agent:
        return nixl_agent(fresh(name), nixl_agent_config(**config))

    return make


class Pair:
    """Two agents in this process, each with stamped pages that the other knows of."""

    def __init__(self, make_agent, pages: int = 16, page_bytes: int = 4096, **config) -> None:
        self.near, self.far = make_agent("near", **config), make_agent("far", **config)
        self.mine, self.theirs = stamped(pages, page_bytes, 0), stamped(pages, page_bytes, 1000)
        self.my_memory, self.their_memory = register(self.near, self.mine), register(self.far, self.theirs)
        self.near.add_remote_agent(self.far.get_agent_metadata())
        self.far.add_remote_agent(self.near.get_agent_metadata())
        self.my_list = self.near.get_xfer_descs(rows(self.mine), "DRAM")
        self.their_list = self.near.get_xfer_descs(rows(self.theirs), "DRAM")

    def request(self, operation: str = "READ", notification: bytes = b""):
        return self.near.initialize_xfer(operation, self.my_list, self.their_list, self.far.name, notification)

    def sides(self):
        return self.near.prep_xfer_dlist("", self.my_list), self.near.prep_xfer_dlist(self.far.name, self.their_list)


@pytest.fixture
def pair(make_agent):
    return Pair(make_agent)


# ---- a far process


def _serve(pipe, name: str, pages: int, page_bytes: int, environment: dict) -> None:
    """Owns stamped pages and tells about them; then does what the pipe says, and nothing by itself."""
    os.environ.update(environment)
    agent = nixl_agent(name, nixl_agent_config(capture_telemetry=True))
    array = stamped(pages, page_bytes, 1000)
    memory = register(agent, array)
    pipe.send((agent.get_agent_metadata(), array.ctypes.data))
    while (command := pipe.recv()) != "end":
        verb, *arguments = command
        if verb == "pages":
            pipe.send(array.copy())
        elif verb == "add":
            pipe.send(agent.add_remote_agent(arguments[0]))
        elif verb == "notifications":
            wanted = arguments[0]
            got: list[bytes] = []
            eventually(lambda: got.extend(m for l in agent.get_new_notifs().values() for m in l) or len(got) >= wanted)
            pipe.send(got)
        elif verb == "write":  # one page to an address of the caller, which it then never looks at again
            caller, address, message = arguments
            handle = agent.initialize_xfer(
                "WRITE",
                agent.get_xfer_descs(rows(array)[:1], "DRAM"),
                agent.get_xfer_descs(rows_at(address, 1, page_bytes), "DRAM"),
                caller,
                message,
            )
            agent.transfer(handle)
            pipe.send("posted")
        elif verb == "processor seconds":
            start = time.process_time()
            assert not pipe.poll(arguments[0])  # the application waits for the next command
            pipe.send(time.process_time() - start)
    agent.deregister_memory(memory)
    pipe.send("ended")


class Far:
    """A process with an agent and stamped pages, and the pipe to it. Between commands it calls nothing."""

    def __init__(self, name: str | None = None, pages: int = 64, page_bytes: int = 4096, **environment: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name or fresh("far")
        self.pages, self.page_bytes = pages, page_bytes
        self.pipe, far_end = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(far_end, self.name, pages, page_bytes, environment), daemon=True
        )
        self.process.start()
        far_end.close()
        self.metadata, self.address = self.hear()

    def hear(self):
        assert self.pipe.poll(TIMEOUT), "the far process does not answer"
        return self.pipe.recv()

    def ask(self, *command):
        self.pipe.send(command)
        return self.hear()

    def descs(self, agent: nixl_agent):
        return agent.get_xfer_descs(rows_at(self.address, self.pages, self.page_bytes), "DRAM")

    def end(self) -> int:
        self.pipe.send("end")
        assert self.hear() == "ended"
        self.process.join(TIMEOUT)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)


@pytest.fixture
def start_far():
    """Starts far processes, and ends those that the test left running: they end with exit code 0."""
    started = []

    def start(*args, **options) -> Far:
        started.append(Far(*args, **options))
        return started[-1]

    yield start
    for far in started:
        if far.process.is_alive():
            assert far.end() == 0


def run_script(code: str, *, timeout: float = TIMEOUT, **environment: str) -> subprocess.CompletedProcess:
    """Runs code in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONFAULTHANDLER": "1", **environment},
    )

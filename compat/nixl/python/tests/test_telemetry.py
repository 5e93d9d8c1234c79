"""The reader of an agent's telemetry buffer, in another process than the agent."""

from __future__ import annotations

import collections
import os
import pathlib
import re
import struct
import subprocess
import sys

import pytest

from conftest import fresh
from nixl.telemetry import EventKind, TelemetryEvent, TelemetryFileError, TelemetryReader

AGENT = """
import os, sys
import numpy as np
from nixl import nixl_agent, nixl_agent_config
agent = nixl_agent(sys.argv[1], nixl_agent_config(backends=["UCX"]))
memory = np.zeros(8192, np.uint8)
agent.register_memory([(memory.ctypes.data, 8192, 0, "")], "DRAM")
lists = [agent.get_xfer_descs([(memory.ctypes.data + offset, 4096, 0)], "DRAM") for offset in (0, 4096)]
handle = agent.initialize_xfer("WRITE", *lists, sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
    print("done", flush=True)
"""


class OtherAgent:
    """An agent of a process of its own, which writes 4096 bytes when it is told."""

    def __init__(self, name: str, folder, events: int) -> None:
        environment = {
            **os.environ,
            "NIXL_TELEMETRY_ENABLE": "y",
            "NIXL_TELEMETRY_DIR": str(folder),
            "NIXL_TELEMETRY_BUFFER_SIZE": str(events),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._hears("ready")

    def _hears(self, word: str) -> None:
        line = self.process.stdout.readline()
        while line and line.strip() != word:  # a line of the log
            line = self.process.stdout.readline()
        assert line, "the agent's process has ended"

    def write(self, times: int) -> None:
        self.process.stdin.write(f"{times}\n")
        self.process.stdin.flush()
        self._hears("done")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start_agent(tmp_path):
    started = []

    def start(name: str, events: int = 1024) -> OtherAgent:
        started.append(OtherAgent(name, tmp_path, events))
        return started[-1]

    yield start
    for agent in started:
        if agent.process.poll() is None:
            agent.kill()


def sums(events: list[TelemetryEvent]) -> collections.Counter:
    total: collections.Counter = collections.Counter()
    for event in events:
        total[event.name] += event.value
    return total


def test_events_are_read_while_the_agent_runs(tmp_path, start_agent):
    name = fresh("read")
    with TelemetryReader(tmp_path / name) as reader:
        assert reader.read() == []  # there is no agent yet
        agent = start_agent(name, 64)
        assert reader.read() == [TelemetryEvent(EventKind.AGENT_MEMORY_REGISTERED, 8192)]
        for _ in range(40):  # more events than the ring holds
            agent.write(3)
            events = reader.read(5) + reader.read()
            assert len(events) == 12 and reader.read() == []
            assert sums(events)["agent_tx_bytes"] == 3 * 4096 and sums(events)["agent_tx_requests_num"] == 3


def test_the_reader_follows_an_agent_that_is_killed_and_comes_back(tmp_path, start_agent):
    name = fresh("back")
    reader = TelemetryReader(tmp_path / name)
    first = start_agent(name)
    assert len(reader.read()) == 1
    first.write(2)
    first.kill()
    again = start_agent(name)  # goes on in the same file
    again.write(1)
    total = sums(reader.read())
    assert total["agent_tx_bytes"] == 3 * 4096 and total["agent_memory_registered"] == 8192
    again.write(1)
    again.kill()
    # Of another size, it gets another file. The old one is read to its end before.
    larger = start_agent(name, 2048)
    larger.write(5)
    assert sums(reader.read())["agent_tx_bytes"] == 4096
    assert sums(reader.read())["agent_tx_bytes"] == 5 * 4096
    larger.write(1)
    assert sums(reader.read())["agent_tx_bytes"] == 4096


def header(write=0, read=0, version=4, capacity=8, mask=7) -> bytes:
    return struct.pack("=QQIIQQ", write, read, version, version, capacity, mask)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"short", "5 bytes"),
        (header(version=3) + bytes(128), "version 3"),
        (b"x" * 4096, "version 2021161080"),
        (header(write=8) + bytes(128), "8 and 0 do not fit"),
        (header(read=9) + bytes(128), "0 and 9 do not fit"),
        (header(capacity=6, mask=5) + bytes(128), "do not fit 6"),
        (header(capacity=0, mask=2**64 - 1) + bytes(128), "do not fit 0"),
        (header(capacity=2**62, mask=2**62 - 1, write=2**62 - 1) + bytes(128), "too short"),
        (header(write=7) + bytes(127), "too short"),
    ],
)
def test_a_file_that_is_no_buffer_is_refused_and_left_alone(tmp_path, content, why):
    path = tmp_path / "garbage"
    path.write_bytes(content)
    reader = TelemetryReader(path)
    for _ in range(2):
        with pytest.raises(TelemetryFileError, match=why) as error:
            reader.read()
        assert str(path) in str(error.value) and "NIXL_TELEMETRY_DIR" in str(error.value)
    assert path.read_bytes() == content
    os.unlink(path)
    assert reader.read() == []
    path.write_bytes(header(write=1) + struct.pack("=IIQ", 99, 0, 7) + bytes(112))
    assert reader.read() == [TelemetryEvent(99, 7)] and TelemetryEvent(99, 7).name == "unknown_event"


def test_a_buffer_that_is_spoilt_while_it_is_read_ends_nothing(tmp_path):
    path = tmp_path / "spoilt"
    path.write_bytes(header(write=3) + bytes(128))
    reader = TelemetryReader(path)
    assert len(reader.read(1)) == 1
    os.truncate(path, 20)
    with pytest.raises(TelemetryFileError, match="20 bytes"):
        reader.read()
    assert path.stat().st_size == 20


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TelemetryFileError, match="no regular file"):
        TelemetryReader(tmp_path / "pipe").read()
    with pytest.raises(IsADirectoryError):
        TelemetryReader(tmp_path).read()
    with pytest.raises(ValueError, match="at least 1"):
        TelemetryReader(tmp_path / "none").read(0)


def test_the_kinds_are_those_of_the_header():
    text = (pathlib.Path(__file__).resolve().parents[2] / "include/telemetry_event.h").read_text()
    kinds = {name: int(number) for name, number in re.findall(r"^  (AGENT_\w+) = (\d+),", text, flags=re.MULTILINE)}
    assert kinds == {kind.name: kind.value for kind in EventKind}

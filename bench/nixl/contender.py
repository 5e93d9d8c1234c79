"""Pairs of processes that are measured: NIXL's wheel and Towline's, each in an interpreter of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess

SIDE = pathlib.Path(__file__).with_name("side.py")


@dataclasses.dataclass(frozen=True)
class Contender:
    """A contender: a package in an interpreter, and how it is set up.

    Args:
        polls: its target has to call in while the initiator works, since no thread makes progress there.
    """

    name: str
    python: str
    package: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    prog_thread: bool = True

    @property
    def polls(self) -> bool:
        return not self.prog_thread

    @property
    def spins(self) -> bool:
        """Takes a core for each side also when it has nothing to do."""
        return self.prog_thread and self.package != "nixl"


class Failed(Exception):
    """A side answered with an error, or is gone."""


class Process:
    def __init__(self, contender: Contender, role: str, log) -> None:
        self.name = f"{contender.name} {role}"
        self.process = subprocess.Popen(
            [contender.python, str(SIDE), contender.package, role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "error", **contender.environment},
        )

    def tell(self, verb: str, **request) -> None:
        try:
            self.process.stdin.write(json.dumps({"do": verb, **request}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name} ended before {verb}") from None

    def hear(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{self.name} ended with exit code {self.process.wait()}")
        message = json.loads(line)
        if "error" in message:
            raise Failed(message["error"])
        return message

    def ask(self, verb: str, **request) -> dict:
        self.tell(verb, **request)
        return self.hear()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pair:
    """An initiator and a target that know each other."""

    def __init__(self, contender: Contender, span: int, memory: str, log) -> None:
        self.contender = contender
        self.serving = False
        self.initiator = Process(contender, "initiator", log)
        self.target = Process(contender, "target", log)
        setup = {"span": span, "memory": memory, "prog_thread": contender.prog_thread, "params": contender.params}
        self.initiator.tell("setup", **setup)
        self.target.tell("setup", **setup)
        self.made = [self.initiator.hear(), self.target.hear()]
        for side, other in ((self.initiator, self.made[1]), (self.target, self.made[0])):
            side.ask("meet", metadata=other["metadata"], address=other["address"])
        self.rest()

    def initiate(self, verb: str, **request) -> dict:
        """A request to the initiator, during which the target serves it."""
        self._signal(signal.SIGCONT)
        if self.contender.polls and not self.serving:
            self.target.ask("serve")
            self.serving = True
        return self.initiator.ask(verb, **request)

    def ask_target(self, verb: str, **request) -> dict:
        self._signal(signal.SIGCONT)
        self.serving = False
        return self.target.ask(verb, **request)

    def rest(self) -> None:
        """Lets the target stop serving, and threads stop that spin, so that the pair takes no time from others."""
        if self.serving:
            self.ask_target("release")
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if self.contender.spins:
            for process in (self.initiator, self.target):
                process.process.send_signal(number)

    def latency(self, size: int, rounds: int) -> float:
        self.rest()
        self._signal(signal.SIGCONT)
        self.target.ask("pong", size=size, rounds=rounds)  # answers when it is ready, and at its end
        seconds = self.initiator.ask("ping", size=size, rounds=rounds)["seconds"]
        self.target.hear()
        self.rest()
        return seconds

    def end(self) -> None:
        for process in (self.initiator, self.target):
            process.end()

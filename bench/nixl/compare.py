#!/usr/bin/env python3
"""Measures Towline under NIXL's Python interface against NIXL itself: the same calls, in one run, taking turns.

Ratios are NIXL's time over Towline's: 2.0 means twice as fast. Each figure is the median of samples, with the smallest
and the largest.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import random
import statistics
import sys

from contender import Contender, Failed, Pair
from report import Report

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = [4 << 10, 64 << 10, 1 << 20, 64 << 20]
COUNTS = [1, 64, 1024, 16384]
CALL_COUNTS = [1, 1000, 16000, 112000]
CALL_BLOCK = 256
MESSAGES = [8, 4096]
SAMPLE_SECONDS = 0.05  # what a sample of a cell should last at least
LATENCY_ROUNDS = 2000
IDLE_SECONDS = 2.0


@dataclasses.dataclass
class Figure:
    """Samples of every contender for one thing that was measured, in seconds or as shares."""

    group: str
    what: str
    samples: dict[str, list[float]]
    bytes: int = 0


def sizes(text: str) -> int:
    units = {"k": 10, "m": 20, "g": 30}
    return int(text[:-1]) << units[text[-1].lower()] if text[-1].lower() in units else int(text)


def towline(args, transport: str) -> Contender:
    environment = {"TOWLINE_NIXL_BACKENDS": "tcp"} if transport == "tcp" else {}
    return Contender("towline", args.towline_python, "nixl", environment)


def peers(args, transport: str) -> list[Contender]:
    """NIXL as it is fastest: over TCP with and without its progress thread, on a host without it."""
    environment = {"UCX_TLS": "tcp"} if transport == "tcp" else {}
    params = {"ucx_error_handling_mode": "none"}
    plain = Contender("nixl", args.nixl_python, "nixl_cu13", environment, params, prog_thread=False)
    threaded = dataclasses.replace(plain, name="nixl_thread", prog_thread=True)
    return [plain, threaded] if transport == "tcp" else [plain]


class Run:
    def __init__(self, args, log) -> None:
        self.args, self.log = args, log
        self.figures: list[Figure] = []
        self.report = Report()

    def pairs(self, contenders: list[Contender], span: int, memory: str) -> list[Pair]:
        return [Pair(contender, span, memory, self.log) for contender in contenders]

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        self.report.add(figure)

    # ---- cells

    def cells(self, transport: str, memory: str) -> None:
        args = self.args
        chosen = [
            (block, count)
            for block in args.blocks
            for count in args.counts
            if block * count <= args.limit
        ]
        if not chosen:
            return
        span = max(max(block * count for block, count in chosen), min(args.limit, 256 << 20))
        group = f"{transport}, {memory} memory"
        self.report.begin(group)
        pairs = self.pairs([towline(args, transport), *peers(args, transport)], span, memory)
        try:
            for block, count in chosen:
                for operation in args.operations:
                    self.cell(group, pairs, operation, block, count, span)
        finally:
            for pair in pairs:
                pair.end()

    def cell(self, group: str, pairs: list[Pair], operation: str, block: int, count: int, span: int) -> None:
        generator = random.Random(block * count)
        mine, theirs = (generator.sample(range(span // block), count) for _ in range(2))
        samples: dict[str, list[float]] = {pair.contender.name: [] for pair in pairs}
        iterations = {}
        for pair in pairs:
            self.verify(pair, operation, block, mine, theirs)
            once = pair.initiate("run", iterations=1)["seconds"]
            iterations[pair] = max(1, min(20_000, int(SAMPLE_SECONDS / max(once, 1e-7))))
            pair.rest()
        for turn in range(self.args.samples):
            for pair in pairs[turn % len(pairs) :] + pairs[: turn % len(pairs)]:
                seconds = pair.initiate("run", iterations=iterations[pair])["seconds"]
                samples[pair.contender.name].append(seconds)
                pair.rest()
        for pair in pairs:
            pair.initiate("release")
            pair.rest()
        what = f"{operation} {text_of(block)} x {count}"
        self.add(Figure(group, what, samples, block * count))

    def verify(self, pair: Pair, operation: str, block: int, mine: list[int], theirs: list[int]) -> None:
        """Prepares the cell, and looks whether its bytes arrive."""
        pair.initiate("fill", value=11)
        pair.ask_target("fill", value=22)
        pair.initiate("prepare", operation=operation, block=block, mine=mine, theirs=theirs)
        if operation == "READ":
            wrong = pair.initiate("check", block=block, mine=mine, value=22)["wrong"]
        else:
            pair.rest()
            wrong = pair.ask_target("check", block=block, mine=theirs, value=11)["wrong"]
        if wrong:
            raise Failed(f"{pair.contender.name}: {wrong} of {len(mine)} blocks are wrong after a {operation}")

    # ---- calls, latency and rest

    def calls(self) -> None:
        span = max(self.args.call_counts) * CALL_BLOCK
        group = "calls, per descriptor"
        self.report.begin(group)
        pairs = self.pairs([towline(self.args, "host"), *peers(self.args, "host")], span, "ordinary")
        for count in self.args.call_counts:
            samples: dict[str, dict[str, list[float]]] = {}
            for _ in range(self.args.samples):
                for pair in pairs:
                    repeats = 9 if count <= 1000 else 3
                    for what, seconds in pair.initiate("calls", count=count, repeats=repeats).items():
                        by_name = samples.setdefault(what, {p.contender.name: [] for p in pairs})
                        by_name[pair.contender.name].append(seconds / count)
                    pair.rest()
            for what, by_name in samples.items():
                self.add(Figure(group, f"{what} x {count}", by_name))
        for pair in pairs:
            pair.end()

    def latency(self) -> None:
        group = "WRITE with notification, one way"
        self.report.begin(group)
        for transport in self.args.transports:
            pairs = self.pairs([towline(self.args, transport), *peers(self.args, transport)], 64 << 10, "shared")
            for size in MESSAGES:
                samples: dict[str, list[float]] = {pair.contender.name: [] for pair in pairs}
                for _ in range(self.args.samples):
                    for pair in pairs:
                        samples[pair.contender.name].append(pair.latency(size, LATENCY_ROUNDS))
                self.add(Figure(group, f"{transport}, {size} bytes", samples))
            for pair in pairs:
                pair.end()

    def rest(self) -> None:
        """Idle agents with their progress threads on, and making agents."""
        group = "agents"
        self.report.begin(group)
        nixl = dataclasses.replace(peers(self.args, "host")[0], prog_thread=True)
        idle: dict[str, list[float]] = {}
        made: dict[str, list[float]] = {}
        for _ in range(self.args.samples):
            for contender in (towline(self.args, "host"), nixl):
                pair = Pair(contender, 1 << 20, "ordinary", self.log)
                made.setdefault(contender.name, []).extend(side["agent_s"] for side in pair.made)
                share = pair.initiate("idle", seconds=IDLE_SECONDS)["share"]
                idle.setdefault(contender.name, []).append(share)
                pair.end()
        self.add(Figure(group, "making one, with its backend", made))
        self.add(Figure(group, "share of a core while idle", idle))


def text_of(size: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nixl-python", help="interpreter with NIXL's wheel, as bench/peers/nixl/setup prints it",
                        default=str(ROOT / "build/peers/nixl/bin/python"))
    parser.add_argument("--towline-python", help="interpreter with the wheel towline-nixl",
                        default=str(ROOT / "build/venv/bin/python"))
    parser.add_argument("--parts", nargs="+", default=["cells", "calls", "latency", "agents"],
                        choices=["cells", "calls", "latency", "agents"])
    parser.add_argument("--transports", nargs="+", default=["host", "tcp"], choices=["host", "tcp"])
    parser.add_argument("--memory", nargs="+", default=["ordinary", "shared"], choices=["ordinary", "shared"])
    parser.add_argument("--operations", nargs="+", default=["READ", "WRITE"], choices=["READ", "WRITE"])
    parser.add_argument("--blocks", nargs="+", type=sizes, default=BLOCKS, help="bytes of a descriptor: 4k 64k 1m 64m")
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS, help="descriptors of a transfer")
    parser.add_argument("--call-counts", nargs="+", type=int, default=CALL_COUNTS, help="descriptors of calls")
    parser.add_argument("--limit", type=sizes, default=4 << 30,
                        help="bytes of a transfer at most; each contender takes twice as much memory")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="file for every sample")
    parser.add_argument("--log", type=pathlib.Path, help="file for what the libraries print; discarded otherwise")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    with open(args.log or "/dev/null", "w") as log:
        run = Run(args, log)
        failure = None
        try:
            if "cells" in args.parts:
                for transport in args.transports:
                    for memory in args.memory if transport == "host" else ["ordinary"]:
                        run.cells(transport, memory)
            if "calls" in args.parts:
                run.calls()
            if "latency" in args.parts:
                run.latency()
            if "agents" in args.parts:
                run.rest()
        except Failed as error:
            failure = str(error)
    run.report.end()
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(figure) for figure in run.figures], indent=1))
    if failure:
        print(f"measuring ended early: {failure}", file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())

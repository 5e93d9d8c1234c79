#!/usr/bin/env python3
"""Measures GET and PUT of whole objects beside the vendors' clients, at one server, taking turns: s5cmd and Amazon's CRT
client at versitygw, Azure's client and NIXL's plugin for it at Azurite, or at a server of this folder (azure_put: PUT), Google's
client at fake-gcs-server (GET), or at a server of this folder (gcs_put: PUT).
With --dropin Towline is asked by NIXL's calls, as NIXL's plugin is: all objects of a cell as one request.

Ratios are Towline's speed over the fastest other's in the same round: above 1 Towline is faster. The figure is the median of
the rounds, with the smallest and the largest. Server and clients share the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from servers import SERVERS, Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
SIZES = [64 << 10, 1 << 20, 64 << 20, 1 << 30]
CONCURRENCIES = [1, 16, 64]
OURS = "towline"
DROPIN = "dropin"  # Towline by NIXL's calls
CONTENDERS = {"s3": [OURS, "crt", "crt_memory", "s5cmd"], "azure": [OURS, "azure", "nixl"], "gcs": [OURS, "google"]}
TIMED = ["crt", "crt_memory", "azure", "google"]  # those of the others that tell each object's latency


def size_of(text: str) -> int:
    units = {"k": 10, "m": 20, "g": 30}
    return int(text[:-1]) << units[text[-1].lower()] if text[-1].lower() in units else int(text)


def text_of(size: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def count_of(size: int, span: int) -> int:
    """Enough objects that starting a program does not weigh, and no more than fit."""
    return max(1, min(span // size, 1024))


class Mover:
    def __init__(self, name: str, args, server: Server, folder: pathlib.Path) -> None:
        folder.mkdir()
        homes = {OURS: args.towline_python, DROPIN: args.towline_python, "nixl": args.nixl_python}
        python = homes.get(name, (args.peers if args.server == "s3" else args.cloud_peers) / "bin/python")
        self.name = name
        self.process = subprocess.Popen(
            [str(python), str(HERE / "mover.py"), name, server.url, str(max(args.span, *args.sizes)), str(folder),
             "--server", args.server, "--s5cmd", str(args.peers / "s5cmd")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=args.log, text=True,
        )  # fmt: skip

    def ask(self, **command) -> dict:
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended: see --log")
        return json.loads(line)

    def end(self) -> int:
        self.process.stdin.close()
        return self.process.wait()


class Cell:
    def __init__(self, op: str, size: int, concurrency: int, count: int, contenders: list[str]) -> None:
        self.op, self.size, self.concurrency, self.count = op, size, concurrency, count
        self.answers: dict[str, list[dict]] = {name: [] for name in contenders}
        self.ours = contenders[0]

    def keys(self, name: str) -> list[str]:
        # The first contender wrote the objects that all contenders read.
        owner = "shared" if self.op == "GET" else name
        return [f"{owner}-{self.size}-{place}" for place in range(self.count)]

    def seconds(self, name: str) -> list[float]:
        return [answer["seconds"] for answer in self.answers[name]]

    def best_peer(self) -> str:
        return min((name for name in self.answers if name != self.ours), key=lambda name: statistics.median(self.seconds(name)))

    def p99_ms(self, name: str) -> float | None:
        rounds = [sorted(answer["latencies"]) for answer in self.answers[name] if answer["latencies"]]
        if not rounds or self.count < 100:
            return None
        return 1e3 * statistics.median(one[int(0.99 * (len(one) - 1))] for one in rounds)

    def cpu_ns_per_byte(self, name: str) -> float:
        return 1e9 * statistics.median(answer["cpu_seconds"] for answer in self.answers[name]) / (self.size * self.count)

    def server_share(self, name: str) -> float:
        """Processors that the server kept busy; one that has a single thread can't do better than 1."""
        return statistics.median(answer["server_share"] for answer in self.answers[name])

    def memory_mib(self, name: str) -> float:
        return max(answer["memory"] for answer in self.answers[name]) / (1 << 20)

    def row(self) -> list:
        peer = self.best_peer()
        ratios = sorted(min(self.answers[name][turn]["seconds"] for name in self.answers if name != self.ours) / ours
                        for turn, ours in enumerate(self.seconds(self.ours)))  # fmt: skip
        middle = statistics.median(ratios)
        style = "green" if middle >= 1 else "yellow" if middle >= 0.95 else "red"
        total = self.size * self.count / 1e9

        def speed(name: str) -> str:
            return f"{total / statistics.median(self.seconds(name)):.3f}"

        def milliseconds(name: str) -> str:
            value = self.p99_ms(name)
            return "" if value is None else f"{value:.1f}"

        timed = min((name for name in TIMED if name in self.answers), key=lambda name: statistics.median(self.seconds(name)), default=peer)
        return [f"{self.op} {text_of(self.size)} x {self.count}, {self.concurrency} at once", speed(self.ours), speed(peer), peer,
                Text(f"{middle:.2f} [{ratios[0]:.2f} {ratios[-1]:.2f}]", style), milliseconds(self.ours), milliseconds(timed),
                f"{self.cpu_ns_per_byte(self.ours):.2f}", f"{self.cpu_ns_per_byte(peer):.2f}",
                f"{self.memory_mib(self.ours):.0f}", f"{self.memory_mib(peer):.0f}",
                f"{self.server_share(self.ours):.2f}", f"{self.server_share(peer):.2f}"]  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="s3", choices=list(SERVERS))
    parser.add_argument("--peers", type=pathlib.Path, default=ROOT / "build/peers/s3",
                        help="folder that bench/peers/s3/setup printed")
    parser.add_argument("--cloud-peers", type=pathlib.Path, default=ROOT / "build/peers/clouds",
                        help="folder that bench/peers/clouds/setup printed")
    parser.add_argument("--nixl-python", type=pathlib.Path, default=ROOT / "build/peers/nixl/bin/python",
                        help="interpreter that bench/peers/nixl/setup printed")
    parser.add_argument("--azurite", help="the program; default: azurite-blob, in PATH or where scripts/install-deps puts it")
    parser.add_argument("--towline-python", type=pathlib.Path, default=ROOT / "build/venv/bin/python",
                        help="interpreter with Towline's package")
    parser.add_argument("--sizes", nargs="+", type=size_of, default=SIZES, help="of an object: 64k 1m 64m 1g")
    parser.add_argument("--concurrencies", nargs="+", type=int, default=CONCURRENCIES)
    parser.add_argument("--operations", nargs="+", default=["PUT", "GET"], choices=["PUT", "GET"])
    parser.add_argument("--dropin", action="store_true", help="with --server azure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--span", type=size_of, default=1 << 30, help="bytes of a cell at most; each contender takes as much")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/dev/shm"),
                        help="where the server keeps its objects, and peers their files")
    parser.add_argument("--json", type=pathlib.Path, help="file for every sample")
    parser.add_argument("--log", type=argparse.FileType("w"), default=subprocess.DEVNULL, help="what the contenders print")
    return parser.parse_args()


def find_azurite() -> str | None:
    place = pathlib.Path.home() / ".cache/towline/bin/azurite-blob"
    return shutil.which("azurite-blob") or (str(place) if place.exists() else None)


def check_programs(args) -> None:
    """Each server has its own clients, and no other's are asked for."""
    clouds = (args.cloud_peers / "bin/python", "bench/peers/clouds/setup")
    azure = [clouds, (args.nixl_python, "bench/peers/nixl/setup")]
    needed = {
        "s3": [(args.peers / "s5cmd", "bench/peers/s3/setup")],
        "azure": azure,
        "azure_put": azure,
        "gcs": [clouds, (args.cloud_peers / "fake-gcs-server", "bench/peers/clouds/setup")],
        "gcs_put": [clouds],
    }
    for program, setup in needed[args.server]:
        if not program.exists():
            raise SystemExit(f"there is no {program}: run {setup}")
    args.azurite = args.azurite or find_azurite()
    if args.server == "azure" and args.azurite is None:
        raise SystemExit("there is no azurite-blob in PATH: scripts/install-deps test installs it where there is npm, or give --azurite")


def main() -> int:
    args = arguments()
    check_programs(args)
    kind = args.server
    if args.server == "gcs":
        args.operations = ["GET"]  # the server takes no uploads by the XML interface, which Towline's are
    if args.server == "azure_put":
        args.server, args.operations = "azure", ["PUT"]
    if args.server == "gcs_put":  # its answers to GET are Python's: too slow to tell clients apart
        args.server, args.operations = "gcs", ["PUT"]
        args.sizes = [size for size in args.sizes if size <= 8 << 20]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what lies in memory goes with it
    folder = pathlib.Path(tempfile.mkdtemp(prefix="towline-bench-", dir=args.folder))
    names = [DROPIN if args.dropin and name == OURS else name for name in CONTENDERS[args.server]]
    cells = [Cell(op, size, concurrency, count_of(size, args.span), names)
             for size in args.sizes for op in args.operations for concurrency in args.concurrencies]  # fmt: skip
    server = SERVERS[kind](args, folder / "server")
    movers = [Mover(name, args, server, folder / name) for name in names]
    for mover in movers:
        mover.answer()
    writer = movers[1] if args.server == "gcs" else movers[0]
    table = Table("", "GB/s", "best peer", "which", "ratio [min max]", "p99 ms", "client's", "CPU ns/B", "peer's", "MiB", "peer's", "server", "peer's",
                  title="whole objects", title_justify="left")  # fmt: skip
    try:
        with Progress(transient=True) as progress:
            task = progress.add_task("measuring", total=len(cells) * (args.rounds + 1) * len(movers))
            for cell in cells:
                if cell.op == "GET":
                    writer.ask(op="PUT", keys=cell.keys(names[0]), bytes=cell.size, concurrency=16, check=False)
                for turn in range(-1, args.rounds):  # the first one warms up and checks
                    for mover in movers[turn % len(movers) :] + movers[: turn % len(movers)]:
                        keys = cell.keys(mover.name)
                        before = server.cpu_seconds()
                        answer = mover.ask(op=cell.op, keys=keys, bytes=cell.size, concurrency=cell.concurrency,
                                           check=turn < 0)  # fmt: skip
                        answer["server_share"] = (server.cpu_seconds() - before) / answer["seconds"]
                        if turn < 0 and cell.op == "PUT":  # another one reads what it wrote
                            other = movers[0] if mover is not movers[0] else movers[1]
                            answer = other.ask(op="GET", keys=keys[-1:], bytes=cell.size, concurrency=1, check=True)
                        if answer["wrong"]:
                            raise SystemExit(f"{mover.name}: wrong bytes after {cell.op} of {text_of(cell.size)}")
                        if turn >= 0:
                            cell.answers[mover.name].append(answer)
                        progress.advance(task)
                table.add_row(*cell.row())
                server.forget()
    finally:
        codes = {mover.name: mover.end() for mover in movers}
        server.end()
        shutil.rmtree(folder, ignore_errors=True)
    console = Console()
    console.width = max(console.width, 130)
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps([{**vars(cell)} for cell in cells], indent=1))
    return 1 if codes[names[0]] else 0


if __name__ == "__main__":
    sys.exit(main())

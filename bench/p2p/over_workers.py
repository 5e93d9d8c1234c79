#!/usr/bin/env python3
"""over_workers.py [--towline PROGRAM] [--workers 1,4] [--rounds 3] [--time 900ms] [--warmup 20] [--sizes 4KiB,1MiB] [--set KEY=VALUE].. [--beside KEY=VALUE]

How much more several workers move over tcp than one: `towline bench` between two network namespaces of this host, which a
veth pair joins, with each number of workers in turns. Needs root. Prints GB/s and, for every number after the first, the
ratio to the first one of the same round: median [least most]; and the processors' seconds a GB of both sides. With
--beside each number of workers runs without and with that variable, such as TOWLINE_SECURE_KEY_FILE=key, and the ratio is
to the same number without.

Requests before measuring (--warmup) are those in which an agent tries whether to split its posts: two as `towline bench`
has by default show a program's first second, 20 what it goes on with.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ADDRESS = "10.213.77."
PORT = 7800


def run(*command: str) -> None:
    subprocess.run(command, check=True)


class Namespaces:
    """Two of this process's own, removed at the end."""

    def __init__(self) -> None:
        self.names = [f"towline-{os.getpid()}-{side}" for side in "ab"]

    def __enter__(self) -> "Namespaces":
        a, b = self.names
        for name in self.names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "veth0", "netns", a, "type", "veth", "peer", "name", "veth0", "netns", b)
        for name, host in zip(self.names, "12", strict=True):
            run("ip", "-n", name, "address", "add", f"{ADDRESS}{host}/24", "dev", "veth0")
            for device in ("lo", "veth0"):
                run("ip", "-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def command(self, side: int, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[side], *command]


def bench(namespaces: Namespaces, towline: str, target: list[str], initiator: list[str], variables: list[str]) -> list[dict]:
    """The rows of `towline bench` over tcp, with a target in one namespace and an initiator in the other."""
    listen = f"{ADDRESS}2:{PORT}"
    environment = dict(os.environ, TOWLINE_LOG_LEVEL="error", **dict(one.split("=", 1) for one in variables))
    there = subprocess.Popen(
        namespaces.command(1, towline, "bench", "--listen", listen, *target),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )
    try:
        if not any("serving" in line for line in there.stdout):
            sys.exit("the target did not start")
        done = subprocess.run(
            namespaces.command(0, towline, "bench", "--connect", listen, "--backend", "tcp", *initiator, "--json"),
            capture_output=True, text=True, env=environment,
        )
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads(done.stdout)["rows"]
    finally:
        there.terminate()
        there.wait()


def measure(namespaces: Namespaces, options: argparse.Namespace, workers: int, more: str) -> list[dict]:
    both = ["--workers", str(workers)]
    how_long = ["--sizes", options.sizes, "--time", options.time, "--warmup", str(options.warmup)]
    return bench(namespaces, options.towline, both, both + how_long, options.set + ([more] if more else []))


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f} {max(values):.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--towline", default="build/release/tools/towline/towline")
    parser.add_argument("--workers", default="1,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", default="900ms")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--sizes", default="4KiB,1MiB")
    parser.add_argument("--set", action="append", default=[], metavar="VARIABLE=VALUE", help="TOWLINE_TUNING_SPLIT=on, ..")
    parser.add_argument("--beside", default="", metavar="VARIABLE=VALUE", help="TOWLINE_SECURE_KEY_FILE=key, ..")
    options = parser.parse_args()
    counts = [int(one) for one in options.workers.split(",")]
    ways = [(workers, more) for workers in counts for more in dict.fromkeys(["", options.beside])]
    rates: dict[tuple, dict[tuple, list[float]]] = {}
    costs: dict[tuple, dict[tuple, list[float]]] = {}
    with Namespaces() as namespaces:
        for turn in range(options.rounds):
            for way in ways[turn % len(ways):] + ways[: turn % len(ways)]:
                for row in measure(namespaces, options, *way):
                    key = ("write" if row["from"] == "initiator" else "read", row["size"])
                    rates.setdefault(key, {}).setdefault(way, []).append(row["bytes_per_s"] / 1e9)
                    cost = row["initiator_cpu_s_per_gb"] + row["target_cpu_s_per_gb"]
                    costs.setdefault(key, {}).setdefault(way, []).append(cost)
    against = "over without" if options.beside else "over the first"
    print(f"{'':6} {'bytes':>8} {'workers':>8}  {'GB/s':22} {against:20} {'processors s/GB':22}")
    for (name, size), by_way in rates.items():
        for way in ways:
            values = by_way[way]
            first = by_way[(way[0], "") if options.beside else ways[0]]
            ratios = [value / one for value, one in zip(values, first, strict=True)]
            print(f"{name:6} {size:8} {way[0]:8}  {spread(values, 2):22} {spread(ratios, 2):20} "
                  f"{spread(costs[name, size][way], 2):22} {way[1]}")


if __name__ == "__main__":
    main()

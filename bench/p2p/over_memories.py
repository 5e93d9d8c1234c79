#!/usr/bin/env python3
"""over_memories.py [--towline PROGRAM] [--rounds 5] [--time 900ms] [--warmup 20] [--sizes 4KiB,..] [--batches 1024,..]

GPU memory over tcp beside host memory: `towline bench` between two network namespaces of this host, which a veth pair
joins, with host memory (private) on both sides, GPU memory on both, and GPU memory on either one, in turns. Needs root
and a GPU, which both processes share if there is one. Prints GB/s and the ratio to host memory within a round: median
[least most].
"""

import argparse

from over_workers import Namespaces, bench, spread

WAYS = [("private", "private"), ("vram", "vram"), ("vram", "private"), ("private", "vram")]


def measure(namespaces: Namespaces, options: argparse.Namespace, here: str, there: str) -> list[dict]:
    memories = ["--memory", here, "--target-memory", there]
    requests = ["--sizes", options.sizes, "--batches", options.batches]
    how_long = ["--time", options.time, "--warmup", str(options.warmup)]
    return bench(namespaces, options.towline, ["--memory", there], memories + requests + how_long, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--towline", default="build/release/tools/towline/towline")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--time", default="900ms")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--sizes", default="4KiB,32KiB,64KiB,1MiB")
    parser.add_argument("--batches", default="1024,1024,1024,64")
    options = parser.parse_args()
    rates: dict[tuple, dict[tuple, list[float]]] = {}
    with Namespaces() as namespaces:
        for turn in range(options.rounds):
            first = turn % len(WAYS)
            for way in WAYS[first:] + WAYS[:first]:
                for row in measure(namespaces, options, *way):
                    cell = ("write" if row["from"] == "initiator" else "read", row["size"])
                    rates.setdefault(cell, {}).setdefault(way, []).append(row["bytes_per_s"] / 1e9)
    print(f"{'':6} {'bytes':>8}  {'here':8} {'there':8} {'GB/s':22} of host memory")
    for (name, size), by_way in rates.items():
        for way in WAYS:
            ratios = [value / host for value, host in zip(by_way[way], by_way[WAYS[0]], strict=True)]
            print(f"{name:6} {size:8}  {way[0]:8} {way[1]:8} {spread(by_way[way], 2):22} {spread(ratios, 2)}")


if __name__ == "__main__":
    main()

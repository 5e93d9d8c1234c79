#!/usr/bin/env python3
"""Runs two builds of towline_bench_nixl_prepped in turns, and prints how the second compares with the first.

    prepped_turns.py BEFORE NOW [--turns 9]

Ratios are within a turn: median [min max]. Below 1 the second is faster.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess


def run(program: str, rounds: int) -> dict[str, float]:
    output = subprocess.run([program, str(rounds)], check=True, capture_output=True, text=True).stdout
    return {name: float(value) for name, value in (line.split("\t") for line in output.splitlines())}


def text(samples: list[float], digits: int) -> str:
    low, high = min(samples), max(samples)
    return f"{statistics.median(samples):.{digits}f} [{low:.{digits}f} {high:.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("now")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3, help="of one run of a program, of which it takes the median")
    args = parser.parse_args()
    before: dict[str, list[float]] = {}
    now: dict[str, list[float]] = {}
    for turn in range(args.turns):
        order = [(args.before, before), (args.now, now)]
        for program, samples in order if turn % 2 == 0 else reversed(order):
            for name, value in run(program, args.rounds).items():
                samples.setdefault(name, []).append(value)
    print("| call | before, ns | now, ns | now / before |\n|---|---|---|---|")
    for name in before:
        if name not in now:
            continue
        ratios = [new / old for old, new in zip(before[name], now[name])]
        print(f"| {name} | {text(before[name], 0)} | {text(now[name], 0)} | {text(ratios, 2)} |")


if __name__ == "__main__":
    main()

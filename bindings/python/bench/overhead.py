"""Measures what Python adds: making, posting and polling a small transfer, and importing the package.

    build/venv/bin/python bindings/python/bench/overhead.py [--rounds 15] [--json]

Two processes on this host; the peer's memory is mapped. Medians with min and max over the rounds, in microseconds;
importing in milliseconds over bare Python, interleaved with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import time

PAGES = 65536
PAGE_BYTES = 4096


def serve(pipe) -> None:
    import towline

    with towline.Agent("peer", listen="127.0.0.1:0") as agent:
        memory = agent.allocate(1024 * PAGE_BYTES)
        region = agent.register(memory, access="rw")
        pipe.send((agent.metadata(), region.address))
        pipe.recv()


def per_call(function, calls: int) -> float:
    """Microseconds a call, less what the loop takes."""
    times = range(calls)
    start = time.perf_counter_ns()
    for _ in times:
        function()
    middle = time.perf_counter_ns()
    for _ in times:
        pass
    return (2 * middle - start - time.perf_counter_ns()) / calls / 1000


def import_ms(statement: str) -> float:
    start = time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return (time.perf_counter_ns() - start) / 1e6


def measure(rounds: int) -> dict[str, list[float]]:
    import numpy as np

    import towline

    context = multiprocessing.get_context("spawn")
    pipe, far_end = context.Pipe()
    process = context.Process(target=serve, args=(far_end,))
    process.start()
    blob, address = pipe.recv()
    results: dict[str, list[float]] = {}
    with towline.Agent("bench", listen="none") as agent:
        peer = agent.add_peer(blob)
        memory = agent.allocate(PAGES * 64)
        region = agent.register(memory, access="rw")
        mine = agent.block_list(towline.Blocks(region.address, 64, (PAGES, 64)))
        theirs = peer.block_list(towline.Blocks(address, 64, (PAGES, 64)))
        pages = agent.block_list(towline.Blocks(region.address, PAGE_BYTES, (1024, PAGE_BYTES)))
        their_pages = peer.block_list(towline.Blocks(address, PAGE_BYTES, (1024, PAGE_BYTES)))
        some = np.random.default_rng(1).permutation(1024)[:100].astype(np.int32)
        many = np.random.default_rng(1).permutation(PAGES).astype(np.int32)
        small, large = agent.plan(mine, theirs), agent.plan(pages, their_pages)
        done = small.post([7], [9])
        done.wait()
        route = small.route()
        print("backend:", route["backend"], *[region["how"] for region in route["regions"]])
        loop = asyncio.new_event_loop()

        async def awaited(calls: int) -> None:
            for _ in range(calls):
                await small.post([7], [9])

        def empty() -> None:
            pass

        measured = {
            "an empty Python function": (empty, 100_000),
            "post 64 B": (lambda: small.post(7, 9), 100_000),
            "post 4 KiB": (lambda: large.post(7, 9), 100_000),
            "poll": (done.poll, 100_000),
            "wait, done": (done.wait, 100_000),
            "100 posts of 64 B, each awaited": (lambda: loop.run_until_complete(awaited(100)), 1_000),
            "copy 1 block": (lambda: agent.copy(mine[7], theirs[9]), 20_000),
            "post 100 random blocks of 4 KiB": (lambda: large.post(some, some).wait(), 1_000),
            f"post {PAGES} random blocks": (lambda: small.post(many, many).wait(), 5),
            f"post {PAGES} regular blocks": (lambda: small.post().wait(), 100),
            "receive(0)": (lambda: agent.receive(0), 10_000),
        }
        for _ in range(rounds):
            for name, (function, calls) in measured.items():
                results.setdefault(name, []).append(per_call(function, calls))
    pipe.send(None)
    process.join()
    for _ in range(rounds):
        bare = import_ms("pass")
        results.setdefault("import towline, ms", []).append(import_ms("import towline") - bare)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = measure(arguments.rounds)
    summary = {name: (statistics.median(times), min(times), max(times)) for name, times in results.items()}
    if arguments.json:
        print(json.dumps(summary))
        return
    print(f"{'':40}{'median':>10}{'min':>10}{'max':>10}")
    for name, figures in summary.items():
        print(f"{name:40}" + "".join(f"{figure:10.3f}" for figure in figures))


if __name__ == "__main__":
    main()

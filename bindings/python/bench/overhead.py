"""What Python adds: making, posting and polling a small transfer, and importing the package.

    build/venv/bin/python bindings/python/bench/overhead.py [--rounds 15] [--json]

Two processes on this host; the peer's memory is mapped. Medians with min and max over the rounds, in microseconds;
importing in milliseconds over bare Python, interleaved with it.
"""

from __future__ import annotations

import argparse
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
        small = agent.write(mine, [7], theirs, [9])
        page = agent.write(pages, [7], their_pages, [9])
        noticed = agent.write(mine, [7], theirs, [9], awaitable=True)
        small.wait()
        page.wait()
        noticed.wait()
        print("backend:", small.route()["backend"], *[region["how"] for region in small.route()["regions"]])

        def empty() -> None:
            pass

        def queued() -> None:
            noticed.post()
            noticed.wait()
            agent._pull()

        measured = {
            "an empty Python function": (empty, 100_000),
            "post 64 B": (small.post, 100_000),
            "post 4 KiB": (page.post, 100_000),
            "poll": (small.poll, 100_000),
            "wait, done": (small.wait, 100_000),
            "post, wait and pull 64 B, awaitable": (queued, 10_000),
            "make, 1 block": (lambda: agent.write(mine, 7, theirs, 9), 2_000),
            "make, 100 random blocks": (lambda: agent.write(pages, some, their_pages, some), 1_000),
            f"make, {PAGES} random blocks": (lambda: agent.write(mine, many, theirs, many), 5),
            f"make, {PAGES} regular blocks": (lambda: agent.write(mine, None, theirs, None), 1_000),
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

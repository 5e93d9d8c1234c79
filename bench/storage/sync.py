"""Measures what sharing one fsync saves: N writes of 4 KiB, each done when it is on the device.

By Towline: N transfers to one file with sync="data", posted at once and waited for. By bare calls: N times pwrite and
fdatasync, one after the other; the same by N threads, where the file system may join what comes together; and N
pwrites with one fdatasync behind them, the least that makes all of them durable.

    build/venv/bin/python bench/storage/sync.py --folder /data
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import towline

BLOCK = 4096


class Bench:
    def __init__(self, folder: str, most: int) -> None:
        self.path = os.path.join(folder, "towline-bench-sync")
        with open(self.path, "wb") as file:
            file.write(bytes(most * BLOCK))
            os.fsync(file.fileno())
        self.fd = os.open(self.path, os.O_RDWR)
        self.data = np.arange(most * BLOCK, dtype=np.uint64).view(np.uint8)[: most * BLOCK]
        self.agent = towline.Agent("sync", listen="none")
        self.region = self.agent.register(self.data, access="rw")
        self.file = self.agent.register_storage(self.path, access="all", sync="data")
        self.threads = ThreadPoolExecutor(most)
        mine = self.agent.block_list(self.region.blocks(0, BLOCK, (most, BLOCK)))
        theirs = self.agent.block_list(self.file.blocks(0, BLOCK, (most, BLOCK)))
        self.plan = self.agent.plan(mine, theirs)

    def close(self) -> None:
        self.threads.shutdown()
        self.agent.close()
        os.close(self.fd)
        os.unlink(self.path)

    def write(self, index: int) -> None:
        os.pwrite(self.fd, self.data[index * BLOCK : (index + 1) * BLOCK], index * BLOCK)

    def durable_write(self, index: int) -> None:
        self.write(index)
        os.fdatasync(self.fd)

    def by_towline(self, count: int) -> None:
        for post in [self.plan.post([i], [i]) for i in range(count)]:
            post.wait(60)

    def one_by_one(self, count: int) -> None:
        for index in range(count):
            self.durable_write(index)

    def by_threads(self, count: int) -> None:
        list(self.threads.map(self.durable_write, range(count)))

    def one_sync(self, count: int) -> None:
        for index in range(count):
            self.write(index)
        os.fdatasync(self.fd)


def milliseconds(way, count: int) -> float:
    start = time.perf_counter()
    way(count)
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    bench = Bench(options.folder, max(options.counts))
    ways = {
        "Towline": bench.by_towline,
        "one by one": bench.one_by_one,
        "threads": bench.by_threads,
        "one sync": bench.one_sync,
    }
    print("| writes | " + " | ".join(f"{name}, ms" for name in ways) + " | one by one / Towline | one sync / Towline |")
    print("|---" * (len(ways) + 3) + "|")
    for count in options.counts:
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds + 1):
            for name, way in ways.items():
                took[name].append(milliseconds(way, count))
        medians = []
        for name in ways:
            kept = took[name][1:]  # the first round warms up
            medians.append(f"{statistics.median(kept):.2f} [{min(kept):.2f} {max(kept):.2f}]")
        ratios = []
        for name in ("one by one", "one sync"):
            paired = [other / ours for other, ours in zip(took[name][1:], took["Towline"][1:], strict=True)]
            ratios.append(f"{statistics.median(paired):.2f} [{min(paired):.2f} {max(paired):.2f}]")
        print(f"| {count} | " + " | ".join(medians + ratios) + " |")
    bench.close()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A bf16 matrix product on GPU 0 while a transfer from it to the last GPU runs, and each alone. Needs torch and Towline's
package. Throughputs are of wall-clock time over whole intervals, which take turns.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import torch

import towline

PAGE, MOST_PAGES = 32 << 10, 65536


class Transfers(threading.Thread):
    """Posts the transfer again and again until it is told to stop."""

    def __init__(self, move: towline.Transfer) -> None:
        super().__init__()
        self.move, self.stop, self.count, self.seconds = move, False, 0, 0.0

    def run(self) -> None:
        start = time.perf_counter()
        while not self.stop:
            self.move.post()
            self.move.wait()
            self.count += 1
        self.seconds = time.perf_counter() - start


def multiply(left, right, out, seconds: float) -> float:
    """FLOP/s. The queue is kept short, so that the interval ends when it should."""
    size, count = left.shape[0], 0
    torch.cuda.synchronize(0)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(10):
            torch.matmul(left, right, out=out)
        count += 10
        torch.cuda.synchronize(0)
    return 2 * size**3 * count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pages", type=int, nargs="+", default=[4096, MOST_PAGES])
    parser.add_argument("--blocks", type=int, nargs="+", default=[8, 24])
    args = parser.parse_args()
    last = torch.cuda.device_count() - 1
    left, right = (torch.randn(args.size, args.size, dtype=torch.bfloat16, device="cuda:0") for _ in range(2))
    out = torch.empty_like(left)
    mine = torch.zeros(MOST_PAGES * 4, PAGE, dtype=torch.uint8, device="cuda:0")
    theirs = torch.zeros(MOST_PAGES * 4, PAGE, dtype=torch.uint8, device=f"cuda:{last}")
    multiply(left, right, out, args.seconds)
    print(f"{'blocks':>6} {'pages':>6} {'matmul alone':>13} {'beside':>8} {'TFLOP/s':>8} {'transfer alone':>15} {'beside':>8} GB/s")
    for blocks, pages in ((blocks, pages) for blocks in args.blocks for pages in args.pages):
        near = towline.Agent("near", listen="none", config={"tuning.cuda.blocks": str(blocks)})
        far = towline.Agent("far", listen="none")
        regions = [near.register(mine, access="rw"), far.register(theirs, access="rw")]
        peer = near.add_peer(far.metadata())
        picks = torch.randperm(len(mine))[:pages]
        there = towline.Blocks(theirs.data_ptr(), PAGE, (len(theirs), PAGE), kind="vram", device=last)
        move = near.transfer(near.block_list(mine)[picks], peer.block_list(there)[picks.flip(0)])
        move.wait()
        figures: dict[str, list[float]] = {"matmul": [], "beside": [], "alone": [], "together": []}
        for _ in range(args.rounds):
            figures["matmul"].append(multiply(left, right, out, args.seconds) / 1e12)
            for name in ("alone", "together"):
                thread = Transfers(move)
                thread.start()
                if name == "alone":
                    time.sleep(args.seconds)
                else:
                    figures["beside"].append(multiply(left, right, out, args.seconds) / 1e12)
                thread.stop = True
                thread.join()
                figures[name].append(thread.count * PAGE * pages / thread.seconds / 1e9)
        median = {name: statistics.median(values) for name, values in figures.items()}
        print(
            f"{blocks:6} {pages:6} {median['matmul']:13.0f} {median['beside']:8.0f} {'':8} {median['alone']:15.1f} "
            f"{median['together']:8.1f}",
            flush=True,
        )
        for region in regions:
            region.deregister()
        near.close()
        far.close()


if __name__ == "__main__":
    main()

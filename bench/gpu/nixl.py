#!/usr/bin/env python3
"""Paged transfers between GPUs of two processes: NIXL's wheel and Towline take turns over identical lists, in the same two
processes and over the same memory. Needs torch, NIXL's wheel and Towline's package; memory is torch's.

GB/s are of medians, from post until the outcome is seen.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

import towline

CELLS = [  # name, page, pages, host memory here
    ("write 32 KiB x 4096", 32 << 10, 4096, False),
    ("write 64 KiB x 4096", 64 << 10, 4096, False),
    ("write 4 KiB x 16384", 4 << 10, 16384, False),
    ("write 1 GiB x 1", 1 << 30, 1, False),
    ("write 64 KiB x 1", 64 << 10, 1, False),
    ("write 4 KiB x 1", 4 << 10, 1, False),
    ("host to peer 32 KiB x 4096", 32 << 10, 4096, True),
]


class Side:
    """Memory on one GPU, known to an agent of each."""

    def __init__(self, name: str, gpu: int, span: int, threads: int) -> None:
        torch.cuda.set_device(gpu)
        self.gpu, self.span = gpu, span
        self.memory = torch.zeros(span, dtype=torch.uint8, device=f"cuda:{gpu}")
        torch.cuda.synchronize(gpu)
        self.agent = towline.Agent(name, listen="none")
        self.region = self.agent.register(self.memory, access="rw")
        self.nixl = None
        try:
            from nixl_cu13._api import nixl_agent, nixl_agent_config

            self.nixl = nixl_agent(name, nixl_agent_config(enable_prog_thread=True, backends=[]))
            parameters = {"num_threads": str(threads)} if threads else {}
            self.nixl.create_backend("UCX", parameters)
            self.nixl.register_memory([(self.memory.data_ptr(), span, gpu, "")], "VRAM")
        except Exception as error:  # the rest is still worth measuring
            print(f"NIXL is left out: {error!r}", file=sys.stderr)
            self.nixl = None

    def card(self) -> dict:
        return {
            "gpu": self.gpu,
            "address": self.memory.data_ptr(),
            "towline": base64.b64encode(self.agent.metadata()).decode(),
            "nixl": base64.b64encode(self.nixl.get_agent_metadata()).decode() if self.nixl else None,
        }


def serve(args) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # NIXL logs to standard output
    side = Side("target", torch.cuda.device_count() - 1, args.span, args.threads)
    print(json.dumps(side.card()), file=answers)
    for line in sys.stdin:
        mine = json.loads(line)
        if side.nixl and mine["nixl"]:
            side.nixl.add_remote_agent(base64.b64decode(mine["nixl"]))
        print(json.dumps({}), file=answers)
    os._exit(0)  # past the finalizers of NIXL's wheel, which can crash


def rows(base: int, pages, page: int, gpu: int):
    table = np.zeros((len(pages), 3), dtype=np.uint64)
    table[:, 0] = np.uint64(base) + pages.astype(np.uint64) * np.uint64(page)
    table[:, 1] = page
    table[:, 2] = gpu
    return table


def seconds_of(post, poll, pending) -> float:
    start = time.perf_counter()
    state = post()
    while state == pending:
        state = poll()
    return time.perf_counter() - start


def measure(args) -> None:
    command = [sys.executable, __file__, "--target", "--span", str(args.span), "--threads", str(args.threads)]
    target = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    side = Side("initiator", 0, args.span, args.threads)
    theirs = json.loads(target.stdout.readline())
    host = torch.zeros(args.host_span, dtype=torch.uint8).pin_memory()
    host_region = side.agent.register(host, access="rw")
    peer = side.agent.add_peer(base64.b64decode(theirs["towline"]))
    other = None
    if side.nixl and theirs["nixl"]:
        side.nixl.register_memory([(host.data_ptr(), args.host_span, 0, "")], "DRAM")
        other = side.nixl.add_remote_agent(base64.b64decode(theirs["nixl"])).decode()
    target.stdin.write(json.dumps(side.card()) + "\n")
    target.stdin.flush()
    target.stdout.readline()
    random = np.random.default_rng(7)
    sys.stdout.flush()
    print(f"{'transfer':30} {'towline GB/s':>13} {'us':>10} {'NIXL GB/s':>11} {'us':>10} {'ratio':>7} {'make us, both':>20}")
    for name, page, pages, from_host in CELLS:
        here_span = args.host_span if from_host else args.span
        if page * pages > min(here_span, args.span):
            continue
        mine = random.choice(here_span // page, pages, replace=False)
        yours = random.choice(args.span // page, pages, replace=False)
        base = host.data_ptr() if from_host else side.memory.data_ptr()
        kind = "dram" if from_host else "vram"
        begun = time.perf_counter()
        here = side.agent.block_list(towline.Blocks(base, page, (here_span // page, page), kind=kind))
        there = peer.block_list(
            towline.Blocks(theirs["address"], page, (args.span // page, page), kind="vram", device=theirs["gpu"])
        )
        move = side.agent.transfer(here[mine], there[yours])
        made = time.perf_counter() - begun
        samples: dict[str, list[float]] = {"towline": [], "nixl": []}
        request, nixl_made = None, 0.0
        if other:
            nixl_kind = "DRAM" if from_host else "VRAM"
            lists = (
                side.nixl.prep_xfer_dlist("NIXL_INIT_AGENT", rows(base, mine, page, 0), nixl_kind),
                side.nixl.prep_xfer_dlist(other, rows(theirs["address"], yours, page, theirs["gpu"]), "VRAM"),
            )
            every = np.arange(pages, dtype=np.int32)
            begun = time.perf_counter()
            request = side.nixl.make_prepped_xfer("WRITE", lists[0], every, lists[1], every)
            nixl_made = time.perf_counter() - begun
        rounds = args.rounds if page * pages > 1 << 20 else args.rounds * 20
        for turn in range(-1, rounds):
            took = seconds_of(move.post, move.poll, towline.Status.IN_PROGRESS)
            nixl_took = 0.0
            if request is not None:
                nixl_took = seconds_of(
                    lambda: side.nixl.transfer(request), lambda: side.nixl.check_xfer_state(request), "PROC"
                )
            if turn >= 0:
                samples["towline"].append(took)
                samples["nixl"].append(nixl_took)
        ours, nixls = statistics.median(samples["towline"]), statistics.median(samples["nixl"])
        size = page * pages
        figures = (f"{size / nixls / 1e9:11.2f} {nixls * 1e6:10.1f} {nixls / ours:7.1f}") if request else f"{'-':>30}"
        print(f"{name:30} {size / ours / 1e9:13.1f} {ours * 1e6:10.1f} {figures} {made * 1e6:9.0f} {nixl_made * 1e6:9.0f}", flush=True)
        if request is not None:
            request.release()
            for one in lists:
                one.release()
    target.stdin.close()
    target.wait(30)
    del host_region
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="store_true", help="the owner of the far memory (started by the program itself)")
    parser.add_argument("--span", type=int, default=33 << 30, help="bytes of GPU memory that pages are drawn from")
    parser.add_argument("--host-span", type=int, default=2 << 30)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0, help="NIXL's worker threads")
    args = parser.parse_args()
    serve(args) if args.target else measure(args)


if __name__ == "__main__":
    main()

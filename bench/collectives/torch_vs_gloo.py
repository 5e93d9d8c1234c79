#!/usr/bin/env python3
"""torch.distributed with backend="towline" against gloo, and towline.collectives by itself, in one run.

Every size and operation is measured by all contenders in turns, in an order that moves on by one each round; a sample is
the time of a few operations between barriers on the slowest rank, and the table shows medians over the rounds.

    torch_vs_gloo.py --ranks 2 --sizes 8,4k,1m,64m --rounds 9 --json out.json

The operations "ddp" and "fsdp" are steps of training (forward, backward, SGD) of four linear layers whose parameters take the
size: by DistributedDataParallel, and by fully_shard layer for layer. For them "direct" is the step of one process by itself.

With --namespaces N the ranks are spread over N network namespaces, joined by a bridge, as if they were N hosts (needs the right
to make them).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import json
import multiprocessing
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import time

CONTENDERS = ("gloo", "towline", "direct")  # direct: towline.collectives without torch.distributed
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier")


def size_of(text: str) -> int:
    unit = {"k": 1 << 10, "m": 1 << 20}.get(text[-1:].lower())
    return int(text[:-1]) * unit if unit else int(text)


def operations_of(contender: str, name: str, count: int, groups: dict):
    """A function that does it once, on float32 tensors of `count` elements altogether, and its check."""
    import torch
    import torch.distributed as dist

    group, world = groups[contender]
    rank, size = dist.get_rank(), dist.get_world_size()
    count -= count % size if count >= size else 0
    part = max(count // size, 1)
    small = torch.full((part,), float(rank + 1))
    large = torch.full((part * size,), float(rank + 1))
    whole = torch.full((count,), 1.0)
    zeros = torch.zeros(part * size)
    into = torch.zeros(part)
    parts = list(zeros.chunk(size)) if rank == 0 else None
    given = list(large.chunk(size)) if rank == 0 else None
    if contender == "direct":
        calls = {
            "all_reduce": lambda: world.all_reduce(whole, "max"),
            "reduce_scatter": lambda: world.reduce_scatter(into, large),
            "all_gather": lambda: world.all_gather(zeros, small),
            "all_to_all": lambda: world.all_to_all(zeros, large),
            "broadcast": lambda: world.broadcast(whole, 0),
            "reduce": lambda: world.reduce(whole, 0, "max"),
            "gather": lambda: world.gather(parts, small, 0),
            "scatter": lambda: world.scatter(into, given, 0),
            "barrier": lambda: world.barrier(),
        }
    else:
        calls = {
            "all_reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(into, large, group=group),
            "all_gather": lambda: dist.all_gather_into_tensor(zeros, small, group=group),
            "all_to_all": lambda: dist.all_to_all_single(zeros, large, group=group),
            "broadcast": lambda: dist.broadcast(whole, 0, group=group),
            "reduce": lambda: dist.reduce(whole, 0, dist.ReduceOp.MAX, group=group),
            "gather": lambda: dist.gather(small, parts, 0, group=group),
            "scatter": lambda: dist.scatter(into, given, 0, group=group),
            "barrier": lambda: dist.barrier(group=group),
        }
    # gloo's reduce_scatter changes its input: what is checked is the first result.
    everyone = sum(range(1, size + 1))
    results = {
        "all_reduce": (whole, 1.0),
        "reduce_scatter": (into, float(everyone)),
        "all_gather": (zeros, torch.arange(1.0, size + 1).repeat_interleave(part)),
        "all_to_all": (zeros, torch.arange(1.0, size + 1).repeat_interleave(part)),
    }

    def check() -> None:
        if name in results:
            got, expected = results[name]
            expected = torch.as_tensor(expected).expand_as(got)
            assert torch.equal(got, expected), f"{contender} {name} of {count} gives {got[:4]}"

    return calls[name], check


def training_of(contender: str, name: str, bytes_: int, groups: dict):
    """A function that does a step of training, and its check."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(7)
    width = max(int((bytes_ / 4 / 4) ** 0.5), 1)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    group = groups[contender][0]
    if contender != "direct" and name == "ddp":
        model = DistributedDataParallel(model, process_group=group)
    elif contender != "direct":
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(8, width)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    def check() -> None:
        # Every rank has the same batch, so the model is to be what it would be without a group.
        if contender == "direct":
            return
        alone, _ = training_of("direct", name, bytes_, groups)
        alone()
        with torch.no_grad():
            torch.testing.assert_close(model(batch), alone.model(batch))

    step.model = model
    return step, check


@contextlib.contextmanager
def namespaces(count: int):
    """Names of network namespaces, each with an interface "eth0" on a common bridge (in one of its own)."""
    names = [f"towline-bench-{os.getpid()}-{i}" for i in range(count)]
    switch = f"towline-bench-{os.getpid()}-switch"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        if count:
            ip("netns", "add", switch)
            ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
            ip("-n", switch, "link", "set", "bridge0", "up")
        for i, name in enumerate(names):
            ip("netns", "add", name)
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{i}", "master", "bridge0", "up")
            ip("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in [*names, switch] if count else []:
            subprocess.run(["ip", "netns", "del", name], check=False)


def enter(namespace: str) -> None:
    with open(f"/run/netns/{namespace}", "rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def serve(rank: int, size: int, folder: str, arguments: argparse.Namespace, names: list[str], results) -> None:
    faulthandler.enable()
    if names:
        enter(names[rank * len(names) // size])
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    import torch
    import torch.distributed as dist

    import towline.torch_distributed  # noqa: F401
    from towline import collectives

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    world = collectives.Communicator(rank=rank, size=size, bootstrap=f"file:{folder}/direct")
    groups = {
        "gloo": (dist.group.WORLD, None),
        "towline": (dist.new_group(backend="towline"), None),
        "direct": (None, world),
    }
    slowest = torch.zeros(1, dtype=torch.float64)
    for name in arguments.operations:
        for bytes_ in arguments.sizes if name != "barrier" else arguments.sizes[:1]:
            cells = {}
            for contender in arguments.contenders:
                if name in ("ddp", "fsdp"):
                    call, check = training_of(contender, name, bytes_, groups)
                else:
                    call, check = operations_of(contender, name, max(bytes_ // 4, 1), groups)
                call()
                check()
                cells[contender] = (call, [])
            for round_ in range(arguments.rounds + 1):
                for turn in range(len(arguments.contenders)):
                    contender = arguments.contenders[(turn + round_) % len(arguments.contenders)]
                    call, samples = cells[contender]
                    repeats = max(1, min(arguments.repeats, (4 << 20) // max(bytes_, 1)))
                    world.barrier()
                    begin = time.perf_counter()
                    for _ in range(repeats):
                        call()
                    slowest[0] = (time.perf_counter() - begin) / repeats
                    world.all_reduce(slowest, "max")
                    if round_ != 0:  # the first one warms up
                        samples.append(slowest.item() * 1e6)
            if rank == 0:
                results.put((name, bytes_, {contender: samples for contender, (_, samples) in cells.items()}))
    world.close()
    dist.destroy_process_group()
    if rank == 0:
        results.put(None)


def next_result(results, processes) -> tuple | None:
    """Returns rank 0's next message. If a rank ends before, this program ends: otherwise all would wait."""
    waited = 0
    while True:
        try:
            return results.get(timeout=1)
        except queue.Empty:
            waited += 1
        ended = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode}
        if ended:
            sys.exit("\n".join(f"rank {rank} ended with exit code {code}" for rank, code in ended.items()))
        if waited >= 600:
            sys.exit("no rank told anything for ten minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8,4k,1m,64m", help="bytes of the larger tensor")
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--namespaces", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=50, help="operations a sample, fewer for large ones")
    parser.add_argument("--json", help="keeps every sample")
    arguments = parser.parse_args()
    arguments.sizes = [size_of(one) for one in arguments.sizes.split(",")]
    for name in ("operations", "contenders"):
        setattr(arguments, name, getattr(arguments, name).split(","))

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave nothing behind
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder, namespaces(arguments.namespaces) as names:
        places = (arguments.ranks, folder, arguments, names, results)
        processes = [context.Process(target=serve, args=(rank, *places), daemon=True) for rank in range(arguments.ranks)]
        for process in processes:
            process.start()
        print(f"{arguments.ranks} ranks, medians of the slowest rank in us" + "".join(f"{one:>12}" for one in arguments.contenders))
        kept = []
        while (cell := next_result(results, processes)) is not None:
            name, bytes_, samples = cell
            kept.append({"operation": name, "bytes": bytes_, "samples_us": samples})
            medians = {one: statistics.median(samples[one]) for one in samples}
            line = f"{name:>16} {bytes_:>10}" + "".join(f"{medians[one]:>12.1f}" for one in arguments.contenders)
            if "gloo" in medians and "towline" in medians:
                line += f"   gloo / towline {medians['gloo'] / medians['towline']:6.1f}"
            print(line, flush=True)
        for process in processes:
            process.join(60)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"ranks": arguments.ranks, "cells": kept}, file, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures how collectives of ranks with a GPU each, paged copies and a product share GPUs; and training, in turns with NCCL.
Needs two GPUs or more, torch with NCCL, and Towline's package. Ends with an error after a wrong byte.
`towline_bench_gpu --collectives` measures collectives alone.

    several.py [sharing] [training]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import towline
from towline import collectives

KIB, MIB = 1 << 10, 1 << 20


class Rank:
    def __init__(self, rank: int, size: int, folder: str, options) -> None:
        self.rank, self.size, self.folder, self.options = rank, size, folder, options
        torch.cuda.set_device(rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl",
            init_method=f"file://{folder}/torch",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=60),
            device_id=torch.device("cuda", rank),
        )
        self.wrong = 0

    def communicator(self, name: str, settings: str = "") -> collectives.Communicator:
        return collectives.Communicator(
            rank=self.rank,
            size=self.size,
            name=name,
            backend="gpu",
            bootstrap=f"file:{self.folder}/towline",
            timeout=20.0,
            config=f"[tuning.collectives]\ngpu = {self.rank}\n{settings}",
        )

    def say(self, *what) -> None:
        if self.rank == 0:
            print(*what, flush=True)

    def slowest(self, seconds: float) -> float:
        told = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return told.item()


# ---- Sharing the GPUs


SHARE = 120  # multiprocessors of the product, where others have the rest for themselves
LEFT = 12  # multiprocessors that cuBLAS is asked to leave to others, which then fit their kernels to as many


def stream_of_share(device: int) -> torch.cuda.ExternalStream:
    """A stream whose kernels run on SHARE multiprocessors. Agents and communicators that are told that number take the rest."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments) -> None:
        if code := getattr(driver, name)(*arguments):
            raise RuntimeError(f"{name}: error {code}")

    whole, part, rest = (ctypes.create_string_buffer(144) for _ in range(3))
    parts, description, green, stream = ctypes.c_uint(1), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDeviceGetDevResource", device, whole, 1)
    call("cuDevSmResourceSplitByCount", part, ctypes.byref(parts), whole, rest, 0, SHARE)
    call("cuDevResourceGenerateDesc", ctypes.byref(description), part, 1)
    call("cuGreenCtxCreate", ctypes.byref(green), description, device, 1)
    call("cuGreenCtxStreamCreate", ctypes.byref(stream), green, 1, 0)
    return torch.cuda.ExternalStream(stream.value, device=device)


def multiply(stop: threading.Event, device: int, told: dict, stream: torch.cuda.Stream | None = None, sms: int = 0) -> None:
    """`sms`: multiprocessors that cuBLAS is asked to keep to; 0: all."""
    size = 8192
    with torch.cuda.device(device), torch.cuda.stream(stream or torch.cuda.Stream()):
        blas = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}")  # which torch has loaded
        if code := blas.cublasSetSmCountTarget(ctypes.c_void_p(torch.cuda.current_blas_handle()), sms):
            raise RuntimeError(f"cublasSetSmCountTarget: error {code}")
        left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=f"cuda:{device}") for _ in range(2))
        out = torch.empty_like(left)
        torch.cuda.current_stream().synchronize()
        begun, count = time.perf_counter(), 0
        while not stop.is_set():
            for _ in range(5):
                torch.matmul(left, right, out=out)
            torch.cuda.current_stream().synchronize()
            count += 5
        told["product TFLOP/s"] = 2e-12 * size**3 * count / (time.perf_counter() - begun)


def replays(world, device: int, name: str, size: int):
    """A thread's body that does all_reduces of `size` bytes again and again."""

    def body(stop: threading.Event, told: dict) -> None:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.zeros(size // 4, device=f"cuda:{device}")
            torch.cuda.current_stream().synchronize()
            begun, count = time.perf_counter(), 0
            # All ranks do as many: the first says when it is over.
            more = torch.ones(1, device=f"cuda:{device}")
            while True:
                for _ in range(50):
                    world.all_reduce(tensor, stream=torch.cuda.current_stream())
                count += 50
                if stop.is_set():
                    more.zero_()
                world.all_reduce(more, "min", stream=torch.cuda.current_stream())
                if more.item() == 0:
                    break
            told[name + " us"] = (time.perf_counter() - begun) / count * 1e6

    return body


class Pages:
    """Pages from this rank's GPU to the next's, by two agents of this process."""

    def __init__(self, rank: Rank, config: dict[str, str], page: int = 32 << 10, pages: int = 4096) -> None:
        there = (rank.rank + 1) % rank.size
        self.bytes = page * pages
        self.mine = torch.randint(0, 255, (pages * 2, page), dtype=torch.uint8, device=f"cuda:{rank.rank}")
        self.theirs = torch.zeros(pages * 2, page, dtype=torch.uint8, device=f"cuda:{there}")
        self.near, self.far = (towline.Agent(name, listen="none", config=config) for name in ("near", "far"))
        self.regions = [self.near.register(self.mine, access="rw"), self.far.register(self.theirs, access="rw")]
        self.peer = self.near.add_peer(self.far.metadata())
        self.picks = torch.randperm(pages * 2)[:pages]
        blocks = towline.Blocks(self.theirs.data_ptr(), page, (pages * 2, page), kind="vram", device=there)
        self.move = self.near.transfer(self.near.block_list(self.mine)[self.picks], self.peer.block_list(blocks)[self.picks.flip(0)])

    def run(self, stop: threading.Event, told: dict) -> None:
        times = []
        while not stop.is_set():
            begun = time.perf_counter()
            self.move.post()
            self.move.wait()
            times.append(time.perf_counter() - begun)
        told["pages GB/s"] = self.bytes / statistics.median(times) / 1e9

    def right(self) -> bool:
        sent = self.mine[self.picks.to(self.mine.device)].cpu()
        return torch.equal(sent, self.theirs[self.picks.flip(0).to(self.theirs.device)].cpu())


def beside(rank: Rank, bodies, seconds: float) -> dict:
    stop, told = threading.Event(), {}
    threads = [threading.Thread(target=body, args=(stop, told)) for body in bodies]
    dist.barrier(device_ids=[rank.rank])
    torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            print(f"HANGS: rank {rank.rank}, {told}", flush=True)
            os._exit(3)
    return told


def run_sharing(rank: Rank) -> list[dict]:
    # "own": on multiprocessors that the product leaves.
    share = f"gpu_application_sms = {SHARE}\n"
    worlds = [rank.communicator(name, share if "own" in name else "") for name in ("first", "second", "own-first", "own-second")]
    pages, own_pages = Pages(rank, {}), Pages(rank, {"tuning.cuda.application_sms": str(SHARE)})
    narrow_pages = Pages(rank, {"tuning.cuda.blocks": str(LEFT)})
    asked = torch.cuda.get_device_properties(rank.rank).multi_processor_count - LEFT
    stream = stream_of_share(rank.rank)
    parts = {
        "product": lambda stop, told: multiply(stop, rank.rank, told),
        "product on its share": lambda stop, told: multiply(stop, rank.rank, told, stream),
        "product asked to leave 12": lambda stop, told: multiply(stop, rank.rank, told, sms=asked),
        "small": replays(worlds[0], rank.rank, "all_reduce 64 KiB", 64 * KIB),
        "large": replays(worlds[1], rank.rank, "all_reduce 64 MiB", 64 * MIB),
        "own small": replays(worlds[2], rank.rank, "all_reduce 64 KiB", 64 * KIB),
        "own large": replays(worlds[3], rank.rank, "all_reduce 64 MiB", 64 * MIB),
        "pages": pages.run,
        "own pages": own_pages.run,
        "narrow pages": narrow_pages.run,
    }
    rank.say("own:", worlds[2].info())
    rows = []
    for together in (
        ["product"],
        ["small"],
        ["large"],
        ["pages"],
        ["product", "pages"],
        ["product", "small"],
        ["product", "large"],
        ["small", "large"],
        ["small", "large", "pages"],
        ["product", "small", "large", "pages"],
        ["product on its share"],
        ["own small"],
        ["own large"],
        ["product on its share", "own small"],
        ["product on its share", "own large"],
        ["product on its share", "own small", "own large"],
        ["product on its share", "own pages"],
        ["product on its share", "own small", "own large", "own pages"],
        ["product"],
        ["product asked to leave 12"],
        ["product asked to leave 12", "narrow pages"],
        ["product asked to leave 12", "small"],
        ["product asked to leave 12", "small", "narrow pages"],
    ):
        told = beside(rank, [parts[part] for part in together], rank.options.seconds)
        everyone = [None] * rank.size
        dist.all_gather_object(everyone, told)
        rows.append({"together": together, "ranks": everyone})
        rank.say(" + ".join(together) + ": " + ", ".join(f"{key} {value:.1f}" for key, value in sorted(told.items())))
    if not all(moved.right() for moved in (pages, own_pages, narrow_pages)):
        rank.wrong += 1
        print("WRONG: pages", flush=True)
    for world in worlds:
        if world.error[1]:
            rank.wrong += 1
            print("broken:", world.error, flush=True)
        world.close()
    return rows


# ---- Training


def layers(width: int, depth: int) -> torch.nn.Module:
    torch.manual_seed(5)
    parts: list[torch.nn.Module] = []
    for _ in range(depth):
        parts += [torch.nn.Linear(width, width), torch.nn.GELU()]
    return torch.nn.Sequential(*parts).cuda()


def train(rank: Rank, backend: str, sharded: bool, steps: int) -> tuple[list[float], float]:
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=60))
    model = layers(2048, 12)
    if sharded:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cuda")
        for part in model:
            if isinstance(part, torch.nn.Linear):
                fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group, device_ids=[rank.rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator("cuda").manual_seed(rank.rank)
    losses, times = [], []
    for _ in range(steps):
        batch = torch.randn(1024, 2048, generator=generator, device="cuda")
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
        losses.append(loss.item())
    return losses, statistics.median(times[3:])


def run_training(rank: Rank) -> list[dict]:
    from towline import torch_distributed

    if "towline" not in dist.Backend.backend_list:
        torch_distributed.register()
    rows = []
    for name, sharded in (("DDP", False), ("FSDP2", True)):
        theirs, their_step = train(rank, "nccl", sharded, rank.options.steps)
        ours, our_step = train(rank, "towline", sharded, rank.options.steps)
        worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
        if not worst < 1e-4:
            rank.wrong += 1
            print(f"WRONG: losses of {name}: {ours}, not {theirs}", flush=True)
        steps = {"nccl": rank.slowest(their_step) * 1e3, "towline": rank.slowest(our_step) * 1e3}
        rows.append({"training": name, "ms a step": steps, "worst difference": worst, "loss": ours[-1]})
        rank.say(f"{name}: {steps['towline']:.2f} ms a step, nccl {steps['nccl']:.2f}; losses differ by {worst:.1e}, last {ours[-1]:.5f}")
    return rows


def serve(rank: int, size: int, folder: str, options) -> None:
    mine = Rank(rank, size, folder, options)
    told = {"machine": f"{size} {torch.cuda.get_device_name(0)}", "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    mine.say(told)
    for part, run in (("sharing", run_sharing), ("training", run_training)):
        if part in options.parts:
            told[part] = run(mine)
    if rank == 0 and options.json:
        with open(options.json, "w") as file:
            json.dump(told, file)
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    sys.exit(1 if mine.wrong else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["sharing", "training"])
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row of what runs together")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if options.gpus < 2:
        print("one GPU: nothing to measure", file=sys.stderr)
        sys.exit(77)
    # Multicast over NVLink stays off unless the caller turned it on.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/towline")
        multiprocessing.spawn(serve, (options.gpus, folder, options), options.gpus)


if __name__ == "__main__":
    main()

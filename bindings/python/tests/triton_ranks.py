"""The ranks of tests of kernels written in Triton, on GPUs or on models of them."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import sys

import torch

_FOLDER = pathlib.Path(__file__).parents[3] / "build" / "triton"


def has_triton() -> bool:
    return (_FOLDER / "triton").exists() or importlib.util.find_spec("triton") is not None


def with_triton() -> dict[str, str]:
    """The environment of a process that finds it."""
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (path, str(_FOLDER)) if part)}


device = "cpu"  # of tensors


def serve_on_model(pipe, rank: int, size: int, folder: str) -> None:
    """Triton's interpreter, over GPUs made of host memory."""
    import gpu_model
    from collective_ranks import obey, open_communicator

    os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton") is None:
        sys.path.append(str(_FOLDER))
    gpu_model.Model()
    with open_communicator(rank, size, folder, backend=gpu_model.NAME) as world:
        obey(pipe, world)


def serve_on_gpu(pipe, rank: int, size: int, folder: str) -> None:
    global device
    from collective_ranks import obey, open_communicator

    device = f"cuda:{rank % torch.cuda.device_count()}" if os.environ.get("GPU_TESTS_ON") == "all" else "cuda:0"
    torch.cuda.set_device(device)
    with open_communicator(rank, size, folder, backend="gpu") as world:
        obey(pipe, world)


class Windowed:
    """A window of the communicator: its bytes, and what kernels need of it."""

    def __init__(self, world, bytes: int) -> None:
        from towline import gpu_memory

        self.window = world.window(bytes)
        self.table = gpu_memory.Table(self.window)
        self.pointers = torch.tensor([*self.table.memory, *self.table.signals], dtype=torch.int64, device=device)
        self.mine = self._bytes(bytes)
        self.group = {"rank": self.table.rank, "size": self.table.size, "slots": self.table.slots}

    def _bytes(self, bytes: int) -> torch.Tensor:
        memory = self.window.memory()
        if device != "cpu":
            return torch.as_tensor(memory, device=device)
        import ctypes

        raw = (ctypes.c_uint8 * bytes).from_address(memory.address)
        raw.keeps = memory
        return torch.frombuffer(raw, dtype=torch.uint8)


@functools.cache
def kernels():
    """Kernels are made here, since Triton decides at its import whether it interprets them."""
    import triton_kernels

    return triton_kernels


def exchange(world) -> None:
    """Everyone puts numbers into the next rank's memory, which adds one and lets the sender fetch them."""
    used = Windowed(world, 1 << 16)
    got = torch.zeros(300, dtype=torch.float32, device=device)
    came = torch.zeros(2, dtype=torch.int32, device=device)
    world.barrier()
    for turn in range(3):
        kernels().exchange[(1,)](used.pointers, got, came, 300, turn, LOOKS, **used.group, block=512)
        settle()
        assert came.tolist() == [1, 1]
        expected = torch.arange(300, dtype=torch.float32, device=device) + 1000 * world.rank + turn + 1
        torch.testing.assert_close(got, expected)
    world.barrier()
    used.window.close()


def all_reduce(world, name: str) -> None:
    dtype = getattr(torch, name)
    count = 3001
    used = Windowed(world, 1 << 16)
    mine = used.mine[: count * dtype.itemsize].view(dtype)
    output = torch.zeros(count, dtype=dtype, device=device)
    failed = torch.zeros(1, dtype=torch.int32, device=device)
    for turn in range(3):
        parts = [torch.arange(count, device=device).remainder(50 + rank + turn).to(dtype) for rank in range(world.size)]
        mine.copy_(parts[world.rank])
        settle()
        kernels().all_reduce[(2,)](
            used.pointers, output, failed, count, turn, LOOKS, **used.group, dtype=kernels().type_of(name), block=512
        )
        settle()
        assert failed.item() == 0
        wide = torch.float32 if dtype.is_floating_point else dtype
        torch.testing.assert_close(output, sum(part.to(wide) for part in parts).to(dtype), rtol=0, atol=0)
    world.barrier()
    used.window.close()


def come_alone(world) -> int | None:
    used = Windowed(world, 4096)
    failed = torch.zeros(1, dtype=torch.int32, device=device)
    output = torch.zeros(10, device=device)
    if world.rank == 0:
        kernels().all_reduce[(1,)](
            used.pointers, output, failed, 10, 0, 200, **used.group, dtype=kernels().type_of("float32"), block=512
        )
        settle()
    world.barrier()
    used.window.close()
    return failed.item() if world.rank == 0 else None


LOOKS = 1 << 30  # the tests' own time limit comes before


def settle() -> None:
    if device != "cpu":
        torch.cuda.synchronize()

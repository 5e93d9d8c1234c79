"""Collectives: a communicator among ranks, its operations, works and windows.

    from towline import collectives

    world = collectives.Communicator()          # rank and size from torchrun, MPI, PALS or Slurm
    world.all_reduce(tensor)                    # in place, done when it returns
    work = world.all_gather(output, tensor, async_op=True)
    work.wait()                                 # or: await work

Tensors are torch's or NumPy's, anything with the buffer protocol or DLPack, or (address, elements, type); contiguous,
in this host's memory. Every rank calls the same operations of one communicator in the same order. Times are seconds.

    on_gpus = collectives.Communicator(backend="gpu")
    on_gpus.all_reduce(tensor, stream=torch.cuda.current_stream())              # enqueued there
    work = on_gpus.all_reduce(tensor, async_op=True, stream=torch.cuda.current_stream())  # after the stream, beside it
    work.wait_on(torch.cuda.current_stream())                                   # what follows comes after it
"""

from __future__ import annotations

import atexit
from enum import IntEnum

from . import _collectives, _errors
from ._collectives import Batch, Communicator, Hook, Window, WindowMemory, Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "Batch",
    "Communicator",
    "Hook",
    "ReduceOp",
    "Window",
    "WindowMemory",
    "Work",
    "backends",
    "environment",
    "load_backend",
]

_collectives._install(_errors.Status, _errors._make)
atexit.register(_collectives._close_all)


class ReduceOp(IntEnum):
    """The reductions: how elements of all ranks become one. Operations take these or their names in lower case."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6
    AVG = 7
    PREMUL_SUM = 8  # the sum of inputs times each rank's own `factor`


def environment(method: str | None = None) -> tuple[int, int]:
    """Rank and size as the environment says; `method` is "auto", "torchrun", "mpi", "pals" or "slurm"."""
    return _collectives._environment(method)


def backends() -> list[str]:
    """The names that `Communicator(backend=..)` takes."""
    return _collectives._backends().split(",")


def load_backend(name: str, path: str) -> None:
    """Makes the backend that a library exports known under a name."""
    _collectives._load_backend(name, path)


for _kind in (Batch, Communicator, Hook, Window, WindowMemory, Work):
    _kind.__module__ = __name__


def _wait_for(work: Work) -> Generator[object, None, None]:
    """Carries out `await work`."""
    import asyncio

    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    def told() -> None:
        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop has ended meanwhile
            pass

    work.on_end(told)
    yield from ended.__await__()
    work.wait()

"""torch's symmetric memory on Towline's: the backend "TOWLINE" of torch.distributed._symmetric_memory.

    import torch.distributed._symmetric_memory as symm_mem
    from towline import torch_symmetric

    torch_symmetric.register()                      # compiles a small extension the first time
    symm_mem.set_backend("TOWLINE")
    tensor = symm_mem.empty(4096, device="cuda")
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    handle.barrier()

torch's own operations over symmetric memory (torch.ops.symm_mem) then use it, but for those that need multicast. The group
may be of any backend. It must lie on one host, with at most 16 ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from . import _errors, _torch_gpu, collectives, gpu_memory
from ._torch_group import Store

__all__ = ["NAME", "register"]

NAME = "TOWLINE"
_COMPILE_SECONDS = 600
_SOURCE = pathlib.Path(__file__).parent / "_torch_symmetric.cc"
_lock = threading.Lock()
_meetings: dict[str, _Meetings] = {}  # by the backend's name


def register() -> None:
    """Makes the backend known to torch. Needs a C++ compiler and ninja: torch keeps what they make for the next time."""
    loaded = ctypes.CDLL(gpu_memory.library())
    allocate, free = (ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in gpu_memory._NAMES)
    _register(NAME, "cuda", allocate, free)


def _register(name: str, device: str, allocate: int, free: int) -> None:
    with _lock:
        if name in _meetings:
            return
        extension = _extension()
        meetings = _Meetings(extension)
        extension.register(name, device, allocate, free, meetings)
        _meetings[name] = meetings


def _folder() -> pathlib.Path:
    """Where torch keeps the extension that was compiled for this torch and this Python."""
    from torch.utils import cpp_extension

    name = re.sub(r"\W", "_", f"towline_torch_symmetric_{torch.__version__}_{sys.implementation.cache_tag}")
    return pathlib.Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()) / name


def _extension() -> Any:
    import torch.distributed._symmetric_memory as symm_mem
    from torch.utils import cpp_extension

    if not hasattr(symm_mem, "set_backend"):
        raise _errors.Unsupported(
            f"torch {torch.__version__} has no other symmetric memory than its own: use torch 2.9 or later, or towline.collectives' windows"
        )
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            return cpp_extension.load(
                folder.name, [str(_SOURCE)], extra_cflags=["-O2", "-std=c++20"], build_directory=str(folder), with_cuda=False
            )
    except (OSError, RuntimeError, ImportError) as error:
        raise _errors.Unsupported(
            f"torch {torch.__version__} has no symmetric memory that this Towline can serve, or there is no compiler: {error}"
        ) from error


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """One process at a time compiles. torch's own lock is a file, for which others wait forever if its owner was killed."""
    with open(folder / "towline.lock", "w") as file:
        deadline = time.monotonic() + _COMPILE_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _errors.TimedOut(f"another process has been compiling in {folder} for {_COMPILE_SECONDS} s") from None
                time.sleep(0.05)
        (folder / "lock").unlink(missing_ok=True)  # torch's: its owner has ended. From 2.15 on it is a flock too
        yield


class _Group:
    """The ranks of a group of torch's with memory on a GPU each. Every method but signals and barriers is collective.

    `number`: how many such groups of that name there were before, the same on every rank. `index`: this rank's GPU, of which
    others may have another one.
    """

    def __init__(self, name: str, number: int, rank: int, size: int, store: Any, index: int) -> None:
        self.index = index
        self._size, self._rank = size, rank
        self._store = Store(store)
        self._prefix = f"towline/symmetric/{name}/{number}"
        self._met = 0  # every attempt counts: keys in the store are used once
        self.communicator = collectives.Communicator(
            rank=rank,
            size=size,
            name=f"symmetric/{name}/{number}",
            store=self._store,
            timeout=store.timeout.total_seconds(),
            backend=_torch_gpu.gpu.backend,
            config=f"[tuning.collectives]\ngpu = {index}\n",
        )
        self._timeout = store.timeout.total_seconds()
        self._windows: dict[int, tuple[int, Any]] = {}  # by the attempt, the same on every rank: its number here, and the window

    def meet(self, number: int, address: int, whole: int, size: int, used: set[int]) -> Any:
        """A window over memory of every rank, once those that no rank uses any more are closed."""
        met, self._met = self._met, self._met + 1
        self._agree(f"{self._prefix}/{met}", size, [one for one, (mine, _) in self._windows.items() if mine not in used])
        window = self.communicator.window((address, whole, "uint8"))
        self._windows[met] = number, window
        return window

    def _agree(self, place: str, size: int, unused: list[int]) -> None:
        """Closing is collective, and ranks free their tensors at different times."""
        self._store.set(f"{place}/{self._rank}", json.dumps([size, unused]).encode())
        by_all = set(unused)
        for rank in range(self._size):
            theirs, free = json.loads(self._store.get(f"{place}/{rank}", self._timeout))
            if theirs != size:
                raise _errors.Mismatch(
                    f"ranks disagree in rendezvous: rank {self._rank} has {size} bytes of symmetric memory, rank {rank} has {theirs}"
                )
            by_all &= set(free)
        if by_all:
            _torch_gpu.gpu.synchronize_all(self.index)  # kernels may still use memory whose tensors are gone
        for one in sorted(by_all):
            self._windows.pop(one)[1].close()


class _Meetings:
    """What the extension asks."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, int], _Group] = {}
        self._met: dict[int, tuple[_Group, Any]] = {}
        self._next = 0

    def rendezvous(
        self, name: str, rank: int, size: int, store: Any, index: int, address: int, whole: int, data: int
    ) -> tuple[int, list[int]]:
        with self._lock:  # one at a time: all ranks must come to them in the same order
            used = set(self._extension.in_use())
            for number in [one for one in self._met if one not in used]:
                del self._met[number]
            group = self._groups.get((name, index))
            if group is None:
                before = sum(known == name for known, _ in self._groups)
                group = self._groups[name, index] = _Group(name, before, rank, size, store, index)
            window = group.meet(self._next, address, whole, data, used)
            number, self._next = self._next, self._next + 1
            self._met[number] = group, window
            return number, gpu_memory.Table(window).memory

    def barrier(self, number: int, channel: int, timeout_ms: int) -> None:
        group, _ = self._met[number]
        group.communicator.barrier(stream=_torch_gpu.gpu.stream(group.index), timeout=_seconds(timeout_ms))
        _torch_gpu.gpu.settle(group.index)

    def put_signal(self, number: int, to: int, channel: int, timeout_ms: int) -> None:
        group, window = self._met[number]
        window.signal(to, stream=_torch_gpu.gpu.stream(group.index), timeout=_seconds(timeout_ms), channel=channel)
        _torch_gpu.gpu.settle(group.index)

    def wait_signal(self, number: int, source: int, channel: int, timeout_ms: int) -> None:
        group, window = self._met[number]
        window.wait_signal(source, stream=_torch_gpu.gpu.stream(group.index), timeout=_seconds(timeout_ms), channel=channel)
        _torch_gpu.gpu.settle(group.index)


def _seconds(timeout_ms: int) -> float | None:
    """None: the group's."""
    return timeout_ms / 1000 if timeout_ms != 0 else None

"""Memory of GPUs that the ranks of a host share: for torch, CuPy, and kernels written in Triton.

    pool = gpu_memory.torch_pool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.zeros(1 << 20, device="cuda")    # lies in memory that other processes can map
    window = communicator.window(tensor)                # without a copy; communicator: backend="gpu"

    cupy.cuda.set_allocator(gpu_memory.cupy_allocator().malloc)

A window over memory from elsewhere works among ranks of one process and GPU; `window_of` copies it where that is needed.
"""

from __future__ import annotations

import ctypes
import pathlib
import struct
from typing import Any

from . import _errors

_MAX_RANKS = 16
_SYMMETRIC = struct.Struct(f"={_MAX_RANKS}Q{_MAX_RANKS}QQIIII")  # towline::device::Symmetric
_NAMES = ("towline_gpu_malloc", "towline_gpu_free")


def library() -> str:
    """The library with the two functions that torch's CUDAPluggableAllocator takes: towline_gpu_malloc, towline_gpu_free."""
    found = pathlib.Path(__file__).parent / "plugins" / "libtowline_collectives_gpu.so"
    if not found.exists():
        raise _errors.NotFound(f"{found} is missing: this package was built without the backend gpu")
    return str(found)


def torch_allocator() -> Any:
    """A torch.cuda.memory.CUDAPluggableAllocator."""
    import torch

    return torch.cuda.memory.CUDAPluggableAllocator(library(), *_NAMES)


def torch_pool() -> Any:
    """A torch.cuda.MemPool whose memory windows share. It must outlive its tensors."""
    import torch

    allocator = torch_allocator()
    pool = torch.cuda.MemPool(allocator.allocator())
    pool._towline_allocator = allocator  # torch keeps no reference
    return pool


def cupy_allocator() -> Any:
    """A cupy.cuda.PythonFunctionAllocator."""
    import cupy

    loaded = ctypes.CDLL(library())
    allocate, free = (getattr(loaded, name) for name in _NAMES)
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    free.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]

    def malloc(size: int, device: int) -> int:
        address = allocate(size, device, None)
        if not address:
            raise MemoryError(f"no shared memory of {size} bytes on GPU {device}")
        return address

    return cupy.cuda.PythonFunctionAllocator(malloc, lambda address, device: free(address, 0, device, None))


class Table:
    """A window's addresses as kernels take them.

    `memory` and `signals` have one address a rank, in the order of ranks; `signals[to] + (from * slots + slot) * 8` is the
    word that `from` counts up at `to`. All slots but the last are the application's.
    """

    def __init__(self, window: Any) -> None:
        values = _SYMMETRIC.unpack(window.symmetric())
        self.bytes, self.rank, self.size, self.slots = values[2 * _MAX_RANKS : 2 * _MAX_RANKS + 4]
        self.memory = list(values[: self.size])
        self.signals = list(values[_MAX_RANKS : _MAX_RANKS + self.size])

    def pointers(self) -> Any:
        """For Triton: an int64 tensor of the GPU with the addresses of all memories, then of all signal words."""
        import torch

        return torch.tensor([*self.memory, *self.signals], dtype=torch.int64, device="cuda")


def window_of(communicator: Any, tensor: Any, copy: bool | None = None) -> tuple[Any, Any]:
    """Collective: a window and the tensor in it.

    `copy`: the tensor's contents go into memory of the window's own, and the tensor given back lies there; None: where the
    tensor's memory can't be shared.
    """
    import torch

    if not copy:
        try:
            return communicator.window(tensor), tensor
        except _errors.Unsupported:
            if copy is False:
                raise
    window = communicator.window(tensor.numel() * tensor.element_size())
    mine = torch.as_tensor(window.memory(), device=tensor.device).view(tensor.dtype).view(tensor.shape)
    mine.copy_(tensor)
    # A peer may put as soon as it has the window: not before these contents are there.
    communicator.barrier(stream=torch.cuda.current_stream(tensor.device).cuda_stream)
    return window, mine

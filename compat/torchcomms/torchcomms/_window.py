"""Windows: a tensor of every rank that the others put into."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from towline import Error

from . import _backends
from ._types import TorchCommWindowAttr
from ._work import TorchWork


class TorchCommWindow:
    """Registering and deregistering are collective. The tensor is moved onto shared memory, so it keeps its address."""

    def __init__(self, comm: Any) -> None:
        if not isinstance(comm._implementation, _backends.Native):
            raise RuntimeError(f"new_window not implemented by backend {comm.get_backend()}")
        self._comm, self._window, self._tensor, self._copy = comm, None, None, None

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        if self._window is not None:
            raise RuntimeError("the window has a tensor already")
        if tensor.device.type != "cpu":
            raise RuntimeError(f"a window's tensor is in the CPU's memory, not on {tensor.device}")
        if not tensor.is_contiguous():
            raise RuntimeError("a window's tensor is contiguous")
        try:
            self._window = self._comm._implementation.use().window(tensor.numel() * tensor.element_size())
        except Error as error:
            raise RuntimeError(str(error)) from error
        # The window's own memory takes the tensor's place: storage of any kind can be given, and all can reach it.
        mine = self._view(self._comm.get_rank(), tensor.dtype, tensor.shape)
        mine.copy_(tensor)
        tensor.set_(mine)
        self._tensor = tensor

    def _view(self, rank: int, dtype: torch.dtype, shape: Any) -> torch.Tensor:
        memory = self._window.memory(rank)
        if memory.bytes == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype)[: torch.Size(shape).numel()].view(shape)

    def tensor_deregister(self) -> None:
        if self._window is None:
            return
        window, self._window = self._window, None
        self._tensor.set_(self._tensor.clone())
        self._tensor = None
        try:
            window.close()
        except Error as error:
            raise RuntimeError(str(error)) from error

    def _use(self) -> Any:
        if self._window is None:
            raise RuntimeError("the window has no tensor; call tensor_register()")
        return self._window

    @property
    def dtype(self) -> torch.dtype:
        self._use()
        return self._tensor.dtype

    @property
    def shape(self) -> list[int]:
        self._use()
        return list(self._tensor.shape)

    @property
    def device(self) -> torch.device:
        return self._comm.get_device()

    def get_size(self) -> int:
        self._use()
        return self._tensor.numel() * self._tensor.element_size()

    def get_tensor(self) -> torch.Tensor | None:
        return self._tensor

    def put(self, tensor, dst_rank: int, target_offset_nelems: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._do("put", dst_rank, target_offset_nelems * tensor.element_size(), tensor)

    def signal(self, dst_rank: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._do("signal", dst_rank)

    def wait_signal(self, peer_rank: int, async_op: bool, hints=None, timeout: timedelta | None = None) -> TorchWork:
        return self._do("wait_signal", peer_rank, timeout.total_seconds() if timeout is not None else None)

    def _do(self, operation: str, *arguments: Any) -> TorchWork:
        try:
            getattr(self._use(), operation)(*arguments)
        except Error as error:
            raise RuntimeError(str(error)) from error
        return TorchWork()

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        self._use()
        return self._view(rank, self._tensor.dtype, self._tensor.shape)

    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr:
        return TorchCommWindowAttr()

    # ---- for kernels: there are none on the CPU

    def get_device_window(self, signal_count: int = -1, counter_count: int = -1, barrier_count: int = 1) -> int:
        raise RuntimeError("get_device_window: windows of the CPU have no side for kernels; use put, signal and wait_signal")

    def register_local_buffer(self, tensor: Any) -> int:
        raise RuntimeError("register_local_buffer is for device windows; put takes any tensor of the CPU as it is")

    def deregister_local_buffer(self, handle: int) -> None:
        raise RuntimeError("deregister_local_buffer is for device windows; there is nothing to deregister")

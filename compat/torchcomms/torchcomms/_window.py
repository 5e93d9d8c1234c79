"""Windows: a tensor of every rank that the others put into."""

from __future__ import annotations

import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch

from towline import Busy, Error, TimedOut, _torch_gpu, gpu_memory

from . import _backends
from ._gpu import EnqueuedWork
from ._types import TorchCommWindowAttr, seconds_of
from ._work import TorchWork

_DELETE_THEM = "delete the views of the window's tensors"


class _LaterWork:
    """An operation that goes on by itself, on the window's thread."""

    def __init__(self, future: Future) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()

    wait_blocking = wait

    @property
    def state(self) -> str:
        if not self._future.done():
            return "in_progress"
        error = self._future.exception()
        return "completed" if error is None else "timed_out" if isinstance(error, TimedOut) else "error"


class TorchCommWindow:
    """Registering and deregistering are collective.

    On the CPU the tensor is moved onto shared memory. On a GPU it stays where it is if the other ranks can reach it there: it
    is of Towline's pool, or all ranks are of one process.
    """

    def __init__(self, comm: Any) -> None:
        if not isinstance(comm._implementation, _backends.Native):
            raise RuntimeError(f"new_window not implemented by backend {comm.get_backend()}")
        self._comm, self._window, self._tensor, self._copy = comm, None, None, None
        self._all_came = False  # to tensor_deregister()
        self._thread: ThreadPoolExecutor | None = None
        self._on_gpu = comm.get_device().type == "cuda"
        self._handles: dict[int, Any] = {}
        self._mapped: list[tuple[weakref.ref, int]] = []  # what map_remote_tensor() gave on the CPU, and of which rank

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        if self._window is not None:
            raise RuntimeError("the window has a tensor already")
        if not self._on_gpu and tensor.device.type != "cpu":
            raise RuntimeError(f"a window's tensor is in the CPU's memory, not on {tensor.device}")
        if not tensor.is_contiguous():
            raise RuntimeError("a window's tensor is contiguous")
        communicator = self._comm._implementation.use()
        size = tensor.numel() * tensor.element_size()
        try:
            if self._on_gpu:
                self._window, mine = _torch_gpu.gpu.window(communicator, tensor)
            else:
                self._window, mine = communicator.window(size), None
        except Error as error:
            raise RuntimeError(str(error)) from error
        if mine is None:
            # The window's own memory takes the tensor's place: storage of any kind can be given, and all can reach it.
            mine = self._view(self._comm.get_rank(), tensor.dtype, tensor.shape)
            mine.copy_(tensor)
        if mine is not tensor:
            tensor.set_(mine)
            self._copy = True
        self._tensor = tensor

    def _view(self, rank: int, dtype: torch.dtype, shape: Any) -> torch.Tensor:
        memory = self._window.memory(rank)
        if memory.bytes == 0:
            return torch.empty(shape, dtype=dtype, device=self._comm.get_device() if self._on_gpu else None)
        if self._on_gpu:
            return _torch_gpu.gpu.at(memory)[: torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)
        # torch gives a buffer back at once and keeps the object: a memoryview holds the window's memory as long as that lives.
        storage = torch.frombuffer(memoryview(memory), dtype=torch.uint8).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(storage, 0, torch.Size(shape))  # no view, which would keep its base

    def tensor_deregister(self) -> None:
        """On the CPU the tensor, and those that map_remote_tensor() gave, keep what they hold now. RuntimeError: other views of them are
        left. Once these are gone it can be called again; the other ranks wait for it."""
        if self._window is None:
            return
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        inside = self._in_memory()
        if self._window.exports > sum(self._window.bytes(rank) != 0 for _, rank in inside) and not self._on_gpu:
            raise RuntimeError(f"tensor_deregister: arrays still use the window's memory: {_DELETE_THEM}")
        try:
            if not self._all_came:  # what the others put until they came is kept, too
                self._comm._implementation.barrier(async_op=False, timeout=None, hints=None)
                self._all_came = True
            for tensor, _ in inside:
                tensor.set_(tensor.clone())
            if self._on_gpu:  # what the current stream does with the memory comes before it goes
                _torch_gpu.gpu.synchronize(self._comm._implementation.index)
            self._window.close()
        except Busy as error:
            for tensor, rank in inside:
                tensor.set_(self._view(rank, tensor.dtype, tensor.shape))
            raise RuntimeError(f"tensor_deregister: {error}: {_DELETE_THEM}") from error
        except Error as error:
            self._forget()
            raise RuntimeError(str(error)) from error
        self._forget()

    def _forget(self) -> None:
        self._window = self._tensor = self._copy = None
        self._all_came = False
        self._mapped = []

    def _in_memory(self) -> list[tuple[torch.Tensor, int]]:
        """The tensors in the window's own memory, and the ranks that this is of."""
        own = [(self._tensor, self._comm.get_rank())] if self._copy else []
        return own + [(tensor, rank) for one, rank in self._mapped if (tensor := one()) is not None]

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
        if target_offset_nelems < 0:
            raise RuntimeError(f"put: the offset {target_offset_nelems} is negative: it counts elements from the window's beginning")
        offset = target_offset_nelems * tensor.element_size()
        return self._do("put", async_op, hints, timeout, dst_rank, offset, tensor)

    def signal(self, dst_rank: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._do("signal", async_op, hints, timeout, dst_rank)

    def wait_signal(self, peer_rank: int, async_op: bool, hints=None, timeout: timedelta | None = None) -> TorchWork:
        return self._do("wait_signal", async_op, hints, timeout, peer_rank)

    def _do(self, operation: str, async_op: bool, hints: Any, timeout: timedelta | None, *arguments: Any) -> TorchWork:
        if hints:
            raise RuntimeError(f"{operation}: windows know no hint {', '.join(map(repr, hints))}")
        call = getattr(self._use(), operation)
        how: dict[str, Any] = {"timeout": seconds_of(timeout)} if operation == "wait_signal" or self._on_gpu else {}
        if self._on_gpu:  # in the current stream, which goes on by itself
            index = self._comm._implementation.index
            how["stream"] = _torch_gpu.gpu.stream(index)
        try:
            if async_op and not self._on_gpu:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, "torchcomms-window")
                return TorchWork(_LaterWork(self._thread.submit(call, *arguments, **how)), timeout)
            call(*arguments, **how)
        except Error as error:
            raise RuntimeError(str(error)) from error
        if not self._on_gpu:
            return TorchWork()
        _torch_gpu.gpu.settle(index)
        return TorchWork(EnqueuedWork(index, self._comm._implementation.use()), timeout, True)

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        self._use()
        mapped = self._view(rank, self._tensor.dtype, self._tensor.shape)
        if not self._on_gpu:
            self._mapped = [one for one in self._mapped if one[0]() is not None]
            self._mapped.append((weakref.ref(mapped), rank))
        return mapped

    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr:
        return TorchCommWindowAttr()

    # ---- for kernels

    def get_device_window(self, signal_count: int = -1, counter_count: int = -1, barrier_count: int = 1) -> int:
        """The address of a towline::device::Symmetric in the GPU's memory: see towline/device/symmetric.cuh."""
        if not self._on_gpu:
            raise RuntimeError("get_device_window: windows of the CPU have no side for kernels; use put, signal and wait_signal")
        if counter_count > 0:
            raise RuntimeError("get_device_window: there are no counters; signals count")
        raw = self._use().symmetric()
        slots = gpu_memory.Table(self._use()).slots - 1
        if max(signal_count, barrier_count) > slots:
            raise RuntimeError(f"get_device_window: a window has {slots} signals for each pair of ranks, which barriers share")
        held = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(self._comm.get_device() if _torch_gpu.gpu.real else "cpu")
        self._handles[held.data_ptr()] = held
        return held.data_ptr()

    def register_local_buffer(self, tensor: Any) -> int:
        """Kernels put from any memory of the GPU as it is: the handle is its address."""
        if not self._on_gpu:
            raise RuntimeError("register_local_buffer is for device windows; put takes any tensor of the CPU as it is")
        self._handles[tensor.data_ptr()] = tensor
        return tensor.data_ptr()

    def deregister_local_buffer(self, handle: int) -> None:
        if not self._on_gpu:
            raise RuntimeError("deregister_local_buffer is for device windows; there is nothing to deregister")
        if self._handles.pop(handle, None) is None:
            raise RuntimeError(f"deregister_local_buffer: {handle:#x} was not registered")

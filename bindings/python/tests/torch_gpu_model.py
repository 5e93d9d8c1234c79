"""torch's GPU is one of gpu_model.

What is a GPU's memory only in name needs no copies, so torch's own operations on it do not wait for a stream: they come after
settle(), which waits.
"""

from __future__ import annotations

import ctypes

import torch

import towline
from gpu_model import NAME, Model
from towline import _torch_gpu


class ModelGpu(_torch_gpu.Gpu):
    """Every tensor is on this GPU. Its current stream is `current`; tests may put another in its place."""

    backend = NAME
    real = False

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.current = self.model.stream()
        self.settles = True

    def available(self) -> bool:
        return True

    def holds(self, tensor: torch.Tensor) -> bool:
        return True

    def current(self) -> int:
        return 0

    def index(self, tensor: torch.Tensor) -> int:
        return 0

    def stream(self, index: int) -> int:
        return self.current

    def graph(self, index: int) -> int:
        return self.model.recording(self.current)

    def count(self) -> int:
        return 1

    def use(self, index: int) -> None:
        assert index == 0

    def settle(self, index: int) -> None:
        if self.settles:
            self.model.drain(self.current)

    def synchronize(self, index: int) -> None:
        self.model.drain(self.current)

    def synchronize_all(self, index: int) -> None:
        self.synchronize(index)

    def used(self, tensors, index: int) -> None:
        """Nothing here is freed while a stream uses it."""

    def mark(self, index: int):
        stream = self.current
        return lambda: self.model.drain(stream)

    def window(self, communicator, tensor: torch.Tensor):
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            return communicator.window(0), tensor
        try:
            return communicator.window((tensor.data_ptr(), size, "uint8")), tensor
        except towline.Unsupported:
            window = communicator.window(size)
            mine = self.at(window.memory()).view(tensor.dtype).view(tensor.shape)
            mine.copy_(tensor)
            communicator.barrier(stream=self.current)
            self.model.drain(self.current)
            return window, mine

    def at(self, memory) -> torch.Tensor:
        raw = (ctypes.c_uint8 * memory.bytes).from_address(memory.address)
        raw.keeps = memory
        return torch.frombuffer(raw, dtype=torch.uint8)

    def future(self, index: int, order, outputs) -> torch.futures.Future:
        made: torch.futures.Future = torch.futures.Future()
        order()
        self.settle(index)
        made.set_result(outputs)
        return made


def install() -> ModelGpu:
    """All tensors of torch are on a GPU of the model from now on, for process groups."""
    _torch_gpu.gpu = ModelGpu()
    return _torch_gpu.gpu

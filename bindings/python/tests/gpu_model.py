"""GPUs made of host memory, for tests on machines without any: the C++ tests' model, as a backend of communicators.

Memory of the host stands for a GPU's, and streams are threads. What is a GPU's memory only in name needs no copies, so torch's
own operations on it do not wait for a stream: they come after settle(), which waits.
"""

from __future__ import annotations

import ctypes
import os
import pathlib

import torch

import towline
from towline import _torch_gpu, collectives

NAME = "gpu_model"
_BUILDS = pathlib.Path(__file__).parents[3] / "build"
_FILE = "tests/gpu/libtowline_gpu_model.so"


def find() -> str | None:
    """The library, of TOWLINE_GPU_MODEL or of a build of the tests."""
    named = os.environ.get("TOWLINE_GPU_MODEL")
    if named:
        return named
    return next((str(_BUILDS / preset / _FILE) for preset in ("ci", "dev") if (_BUILDS / preset / _FILE).exists()), None)


class Model:
    """The backend, registered, and its streams. One for a process."""

    def __init__(self) -> None:
        path = find()
        assert path is not None
        self._library = ctypes.CDLL(path)
        self._library.towline_gpu_model_table.restype = ctypes.c_void_p
        self._library.towline_gpu_model_stream.restype = ctypes.c_void_p
        if NAME not in collectives.backends():
            core = ctypes.CDLL(str(pathlib.Path(towline.__file__).parent / "libtowline.so.0"))
            register = core.towline_collective_backend_register
            register.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
            assert register(NAME.encode(), self._library.towline_gpu_model_table()) == 0

    def stream(self) -> int:
        return self._library.towline_gpu_model_stream()

    def allocate(self, size: int) -> int:
        """Memory that processes share; the model's GPUs' pool."""
        self._library.towline_gpu_model_malloc.restype = ctypes.c_void_p
        return self._library.towline_gpu_model_malloc(ctypes.c_int64(size), 0, None)

    def pool(self) -> list[int]:
        """The addresses of the functions that allocate from it and free."""
        return [
            ctypes.cast(getattr(self._library, f"towline_gpu_model_{what}"), ctypes.c_void_p).value for what in ("malloc", "free")
        ]

    def drain(self, stream: int) -> None:
        self._library.towline_gpu_model_drain(ctypes.c_void_p(stream))

    def hold(self, stream: int, held: bool) -> None:
        self._library.towline_gpu_model_hold(ctypes.c_void_p(stream), int(held))

    def record(self, stream: int) -> None:
        self._library.towline_gpu_model_record(ctypes.c_void_p(stream))

    def end_record(self, stream: int) -> int:
        self._library.towline_gpu_model_end_record.restype = ctypes.c_void_p
        return self._library.towline_gpu_model_end_record(ctypes.c_void_p(stream))

    def replay(self, graph: int, stream: int) -> None:
        self._library.towline_gpu_model_replay(ctypes.c_void_p(graph), ctypes.c_void_p(stream))

    def recording(self, stream: int) -> int:
        self._library.towline_gpu_model_recording.restype = ctypes.c_uint64
        return self._library.towline_gpu_model_recording(ctypes.c_void_p(stream))


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

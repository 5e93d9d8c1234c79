"""GPUs made of host memory for nixl_ep: the C++ tests' model of the kernels. A stream is a thread, and a tensor a host tensor."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading

_BUILDS = pathlib.Path(__file__).parents[4] / "build"
_FILE = "tests/gpu/libtowline_gpu_model.so"


def find() -> str | None:
    """The library, of TOWLINE_GPU_MODEL or of a build of the tests."""
    named = os.environ.get("TOWLINE_GPU_MODEL")
    if named:
        return named
    return next((str(_BUILDS / preset / _FILE) for preset in ("ci", "dev") if (_BUILDS / preset / _FILE).exists()), None)


class _Event:
    """The end of what a stream held: here, of everything in it."""

    def __init__(self, gpu: ModelGpu, stream: int) -> None:
        self._gpu, self._stream = gpu, stream

    def wait(self) -> None:
        self._gpu.drain(self._stream)


class ModelGpu:
    """In the place of nixl_ep._gpu.TorchGpu: each thread has a current stream."""

    index = 0
    host: str | None = None
    _library = ctypes.CDLL(find()) if find() else None
    _current = threading.local()

    def __init__(self) -> None:
        import torch

        self.device = torch.device("cpu")
        self._library.towline_gpu_model_stream.restype = ctypes.c_void_p
        self._beside = None

    def opens_to_hosts(self) -> None:
        """Its streams have no queues."""

    def table(self):
        from nixl_ep import _library

        entry = self._library.towline_gpu_model_experts
        entry.restype = ctypes.POINTER(_library.Table)
        return entry().contents

    def functions(self) -> int:
        self._library.towline_gpu_model_functions.restype = ctypes.c_void_p
        return self._library.towline_gpu_model_functions()

    def stream(self) -> int:
        if not hasattr(self._current, "stream"):
            self._current.stream = self._library.towline_gpu_model_stream()
        return self._current.stream

    def communication_stream(self) -> int:
        if self._beside is None:
            self._beside = self._library.towline_gpu_model_stream()
        return self._beside

    def drain(self, stream: int | None = None) -> None:
        self._library.towline_gpu_model_drain(ctypes.c_void_p(self.stream() if stream is None else stream))

    def beside(self, work):
        self.drain()
        work(self.communication_stream())
        return _Event(self, self.communication_stream())

    def make_beside(self, work, after, tensors):
        if after is not None:
            after.wait()
        self.drain()
        return work(self.communication_stream()), _Event(self, self.communication_stream())

    def wait(self, event) -> None:
        event.wait()

    def bytes_at(self, address: int, size: int):
        import torch

        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

    def record(self) -> None:
        self._library.towline_gpu_model_record(ctypes.c_void_p(self.stream()))

    def end_record(self) -> int:
        self._library.towline_gpu_model_end_record.restype = ctypes.c_void_p
        return self._library.towline_gpu_model_end_record(ctypes.c_void_p(self.stream()))

    def replay(self, graph: int) -> None:
        self._library.towline_gpu_model_replay(ctypes.c_void_p(graph), ctypes.c_void_p(self.stream()))

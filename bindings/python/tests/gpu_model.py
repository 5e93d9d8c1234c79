"""GPUs made of host memory, for tests on machines without any: the C++ tests' model, as a backend of communicators.

Memory of the host stands for a GPU's, and streams are threads. torch is not needed here: ranks that do without it start sooner.
"""

from __future__ import annotations

import ctypes
import os
import pathlib

import towline
from towline import collectives

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

"""The table of libtowline_experts.so (include/towline/plugin/experts.h), by ctypes."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

DISPATCH, COMBINE, BARRIER, MASK, UNMASK, CLEAN, QUERY = range(7)
SEND, RECEIVE = 1, 2
BATCH_DISPATCH, BATCH_COMBINE = 0, 1
BFLOAT16, FP8, ROUND_SCALE, UE8M0, LOGFMT = 0, 1, 2, 4, 8


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("gpu", c_uint32),
        ("rank", c_uint32),
        ("capacity", c_uint32),
        ("local", c_uint32),
        ("bytes", c_uint64),
        ("timeout_ns", c_uint64),
        ("functions", c_void_p),
        ("host", c_char_p),
        ("listen", c_char_p),
    ]


class Call(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_uint32),
        ("phases", c_uint32),
        ("format", c_uint32),
        ("peer", c_uint32),
        ("ranks", c_uint32),
        ("tokens", c_uint32),
        ("max_tokens", c_uint32),
        ("hidden", c_uint32),
        ("topk", c_uint32),
        ("reserved", c_uint32),
        ("ticket", c_uint64),
        ("x", c_void_p),
        ("topk_idx", c_void_p),
        ("topk_weights", c_void_p),
        ("out", c_void_p),
        ("scales", c_void_p),
        ("src_info", c_void_p),
        ("layout_range", c_void_p),
        ("count", c_void_p),
        ("stats", c_void_p),
        ("wait_ns", c_void_p),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_uint32),
        ("phases", c_uint32),
        ("ranks", c_uint32),
        ("blocks", c_uint32),
        ("tokens", c_uint32),
        ("max_tokens", c_uint32),
        ("received", c_uint32),
        ("token_bytes", c_uint32),
        ("scales", c_uint32),
        ("topk", c_uint32),
        ("experts", c_uint32),
        ("alignment", c_uint32),
        ("x", c_void_p),
        ("x_scales", c_void_p),
        ("scale_token_stride", c_int64),
        ("scale_stride", c_int64),
        ("topk_idx", c_void_p),
        ("topk_weights", c_void_p),
        ("in_rank", c_void_p),
        ("tokens_per_expert", c_void_p),
        ("bias", c_void_p * 2),
        ("prefix", c_void_p),
        ("source_tokens", c_void_p),
        ("out", c_void_p),
        ("out_scales", c_void_p),
        ("out_topk_idx", c_void_p),
        ("out_topk_weights", c_void_p),
        ("received_per_expert", c_void_p),
    ]


def make_batch(op: int, **fields) -> Batch:
    return Batch(struct_size=ctypes.sizeof(Batch), op=op, **fields)


def int32_list(count: int):
    """Host memory for so many int32."""
    return (c_int32 * count)()


def address_of(made) -> int:
    return ctypes.addressof(made)


def make_call(op: int, **fields) -> Call:
    return Call(struct_size=ctypes.sizeof(Call), op=op, **fields)


class Table(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("error", CFUNCTYPE(c_char_p)),
        ("bytes_for", CFUNCTYPE(c_uint64, c_uint32, c_uint32, c_uint32, c_uint32)),
        ("open", CFUNCTYPE(c_int32, POINTER(Options), POINTER(c_void_p))),
        ("close", CFUNCTYPE(None, c_void_p)),
        ("describe", CFUNCTYPE(c_int32, c_void_p, POINTER(c_uint8), POINTER(c_size_t))),
        ("connect", CFUNCTYPE(c_int32, c_void_p, c_uint32, c_char_p, c_size_t, c_uint64)),
        ("disconnect", CFUNCTYPE(c_int32, c_void_p, c_uint32)),
        ("issue", CFUNCTYPE(c_int32, c_void_p, POINTER(Call), c_void_p)),
        ("results", CFUNCTYPE(c_int32, c_void_p, c_uint32, c_uint32, POINTER(c_void_p))),
        ("memory", CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p), POINTER(c_uint64))),
        ("status_name", CFUNCTYPE(c_char_p, c_int32)),
        ("batch", CFUNCTYPE(c_int32, c_void_p, POINTER(Batch), c_void_p)),
        ("open_to_hosts", CFUNCTYPE(c_int32, c_void_p)),
    ]


class ExpertsError(RuntimeError):
    """A call of the library that failed: `status` is the name of Towline's code, as "PEER_LOST", and the text says what to do."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


@functools.cache
def load() -> Table:
    """The library's table. It needs no GPU until a member is opened."""
    path = pathlib.Path(__file__).parents[1] / "nixl" / "plugins" / "libtowline_experts.so"
    if not path.exists():
        raise ImportError(f"nixl_ep: {path} is missing: install the wheel towline-nixl anew")
    entry = ctypes.CDLL(str(path)).towline_experts_v1
    entry.restype = POINTER(Table)
    return entry().contents


class Member:
    """This process's rank. One thread at a time uses it."""

    def __init__(
        self,
        table: Table,
        gpu: int,
        rank: int,
        capacity: int,
        local: int,
        size: int,
        timeout_ns: int,
        functions: int | None,
        host: str | None,
    ) -> None:
        """functions: the address of Towline's functions, to reach ranks of other hosts. host: the name of the host that this rank counts as
        on; None: the real one."""
        self._table = table
        self._handle = c_void_p()
        options = Options(ctypes.sizeof(Options), gpu, rank, capacity, local, size, timeout_ns, functions, host.encode() if host else None, None)
        self._check(table.open(ctypes.byref(options), ctypes.byref(self._handle)))

    def _check(self, status: int) -> None:
        if status < 0:
            raise ExpertsError(self._table.status_name(status).decode(), self._table.error().decode())

    def close(self) -> None:
        self._table.close(self._handle)

    def describe(self) -> bytes:
        length = c_size_t(0)
        self._table.describe(self._handle, None, ctypes.byref(length))
        room = (c_uint8 * length.value)()
        self._check(self._table.describe(self._handle, room, ctypes.byref(length)))
        return bytes(room[: length.value])

    def connect(self, rank: int, description: bytes, timeout_ns: int) -> None:
        self._check(self._table.connect(self._handle, rank, description, len(description), timeout_ns))

    def open_to_hosts(self) -> None:
        """Ranks of other hosts can reach this one from now on. Until then it listens on no network."""
        self._check(self._table.open_to_hosts(self._handle))

    def disconnect(self, rank: int) -> None:
        self._check(self._table.disconnect(self._handle, rank))

    def issue(self, call: Call, stream: int) -> None:
        self._check(self._table.issue(self._handle, ctypes.byref(call), stream))

    def batch(self, call: Batch, stream: int) -> None:
        self._check(self._table.batch(self._handle, ctypes.byref(call), stream))

    def results(self, max_tokens: int, hidden: int) -> int:
        address = c_void_p()
        self._check(self._table.results(self._handle, max_tokens, hidden, ctypes.byref(address)))
        return address.value

    def memory(self) -> tuple[int, int]:
        address, size = c_void_p(), c_uint64()
        self._check(self._table.memory(self._handle, ctypes.byref(address), ctypes.byref(size)))
        return address.value, size.value

"""A text log of what communicators do, in torchcomms' format (version 1).

One line for each kind of operation (its *signature*, with a number), one each time it is issued, and if asked one each for
its start, its end and the wait for it. An operation that a graph records has a line with the graph's number, and its start and end have one in each
replay, with the replay's. Lines of different operations interleave; those of one keep their order.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import towline
from towline import _torch_gpu, collectives

from .._backends import Native

_DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.bool: "bool"}
_DTYPES |= {torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8"}
_DTYPES |= {torch.float8_e4m3fn: "fp8e4m3", torch.float8_e5m2: "fp8e5m2"}
_REDUCTIONS = {"PRODUCT": "prod"}
_EVENTS = ("ALL", "LIFECYCLE")
_VERBOSE = ("buffers",)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _joined(values: Any) -> str:
    return ",".join(str(value) for value in values)


def _counts(side: str, value: Any) -> str:
    """`value`: a tensor, a list of them, or how many elements."""
    if isinstance(value, (list, tuple)):
        return f"{side}_counts={_joined(one.numel() for one in value)}"
    return f"{side}_count={value if isinstance(value, int) else value.numel()}"


def _addresses(value: Any) -> str:
    return _joined(f"{one.data_ptr():#x}" for one in _list(value))


def _signature(operation: str, told: Any, buffers: bool) -> str:
    fields, pointers = [operation], []
    tensor = getattr(told, "tensor", None)
    given, taken = getattr(told, "input", tensor), getattr(told, "output", tensor)
    if tensor is not None:
        fields += [_counts("in", 0 if operation == "recv" else tensor), _counts("out", 0 if operation == "send" else tensor)]
        pointers = [f"buf={_addresses(tensor)}"]
    elif given is not None:
        if operation == "all_to_all_v_single":
            fields += [f"in_splits={_joined(told.input_split_sizes)}", f"out_splits={_joined(told.output_split_sizes)}"]
        else:
            fields += [_counts("in", given), _counts("out", taken)]
        pointers = [f"in={_addresses(given)}", f"out={_addresses(taken)}"]
    if given is not None:
        some = (_list(given) or _list(taken))[0]  # of a scatter, only the root gives something
        fields.append(f"dtype={_DTYPES.get(some.dtype, 'other')}")
    if hasattr(told, "num_ops"):
        fields.append(f"num_ops={told.num_ops}")
    if hasattr(told, "op"):
        name = told.op.type.name
        fields.append(f"red_op={_REDUCTIONS.get(name, name.lower())}")
    fields += [f"{field}={getattr(told, field)}" for field in ("root", "peer") if hasattr(told, field)]
    fields.append(f"async_op={'t' if told.async_op else 'f'}")
    return "|".join(fields + (pointers if buffers else []))


def _graph_of(comm: Any) -> int:
    device = comm.get_device()
    return _torch_gpu.gpu.graph(device.index or 0) if device.type == "cuda" else 0


class _Recorded:
    """An operation that a graph holds, and how often replays have begun and ended it. The messages of a batch are one operation."""

    def __init__(self, graph: int, number: int) -> None:
        self._graph, self._number = graph, number
        self._counts: dict[str, dict[int, int]] = {"S": {}, "E": {}}  # by the number of each message
        self._told = {"S": 0, "E": 0}

    def holds(self, op_id: int) -> None:
        for counts in self._counts.values():
            counts[op_id] = 0

    def happened(self, op_id: int, event: str) -> Iterator[tuple[str, str]]:
        """Places and events that the log has now: it begins with the first of its messages, and ends with the last."""
        self._counts[event][op_id] += 1
        happened = {"S": max(self._counts["S"].values()), "E": min(self._counts["E"].values())}
        # Replays of one graph do not overlap, but what is told of two messages may.
        while self._told[next_event := "E" if self._told["S"] > self._told["E"] else "S"] < happened[next_event]:
            self._told[next_event] += 1
            yield f"G{self._graph}|R{self._told[next_event]}|C{self._number}", next_event


class _Replays:
    """Follows the operations of one communicator that graphs record."""

    def __init__(self, comm: collectives.Communicator, write: Callable[[_Recorded, int, str], None]) -> None:
        self._write = write
        self._recorded: dict[int, _Recorded] = {}  # by the communicator's own number
        self._now = threading.local()  # what this thread is about to issue
        self._hooks = [comm.hook("replay", self._replayed), comm.hook("pre", self._issued)]

    def expect(self, recorded: _Recorded | None) -> None:
        """What this thread issues from now on is this operation, or none that a graph records."""
        self._now.recorded = recorded

    def _issued(self, told: dict[str, Any]) -> None:
        recorded = getattr(self._now, "recorded", None)
        if recorded is not None:
            recorded.holds(told["op_id"])
            self._recorded[told["op_id"]] = recorded

    def _replayed(self, told: dict[str, Any]) -> None:
        recorded = self._recorded.get(told["op_id"])
        if recorded is not None:
            self._write(recorded, told["op_id"], "E" if told["status"] == towline.Status.OK else "S")


class clog:  # the name that torchcomms has for it
    """Logs the communicators it is registered with, and what is split off them, to the file `output`.

    `events`: "ALL" or "LIFECYCLE" for starts, ends and waits; operations that are issued are logged always. `verbose`:
    "buffers" for addresses.
    """

    def __init__(self, output: str, events: list[str], verbose: list[str] = ()) -> None:
        for wrong in (*(one for one in events if one not in _EVENTS), *(one for one in verbose if one not in _VERBOSE)):
            raise ValueError(f"clog knows the events {', '.join(_EVENTS)} and the verbose fields {', '.join(_VERBOSE)}, not {wrong!r}")
        self._lifecycle, self._buffers = bool(events), bool(verbose)
        self._lock = threading.Lock()
        self._file = open(output, "w", buffering=1)  # closed with the hook
        self._signatures: dict[str, int] = {}
        self._works = itertools.count(1)
        self._open: dict[int, tuple[int, int, int]] = {}  # by the operation's number, until its post hook: signature, work, graph
        self._pending: dict[int, tuple[str, int, list[str]]] = {}  # by work: communicator, signature, what is still to come
        self._comms: list[Any] = []
        # By communicator: the native one, which a reconfiguration replaces, and what follows it (None: it does not tell of replays).
        self._replays: dict[Any, tuple[collectives.Communicator, _Replays | None]] = {}
        self._base = round(time.time(), 3)
        self._write(f"V|1|base_timestamp={self._base:.3f}")

    def register_with_comm(self, comm: Any) -> None:
        if any(one is comm for one in self._comms):
            raise RuntimeError(f"clog: already registered with communicator {comm.get_name()}")
        self._write(f"new_comm|comm={comm.get_name()}|rank={comm.get_rank()}|world_size={comm.get_size()}")
        self._follow(comm)

    def _follow(self, comm: Any) -> None:
        self._comms.append(comm)
        comm.register_pre_hook(lambda *told: self._began(comm, *told))
        comm.register_post_hook(lambda op_id, told: self._issued(comm, op_id, told))

    # ---- what happens

    def _began(self, comm: Any, operation: Any, op_id: int, told: Any) -> None:
        name = comm.get_name()
        if operation.name == "split":
            self._write(f"split|parent={name}|child={told.name}|ranks={_joined(told.ranks)}")
        if operation.name in ("split", "new_window", "finalize"):
            return
        graph = _graph_of(comm)
        signature = f"{_signature(operation.name, told, self._buffers)}|comm={name}"
        with self._lock:
            number = self._signatures.get(signature)
            if number is None:
                number = self._signatures[signature] = len(self._signatures) + 1
                self._file.write(f"C{number}|sig|{signature}\n")
            work = next(self._works)
            self._open[op_id] = (number, work, graph)
            if self._lifecycle and graph == 0:
                self._pending[work] = (name, number, ["S", "E", "W"] if told.async_op else ["S", "E"])
            place = f"G{graph}|C{number}" if graph != 0 else f"C{number}"
            self._file.write(f"{place}|Q|work_id={work}|{self._now()}\n")
        if not self._lifecycle:
            return
        recorded = _Recorded(graph, number) if graph != 0 else None
        replays = self._replays_of(comm) if graph != 0 else self._replays.get(comm, (None, None))[1]
        if replays is not None:
            replays.expect(recorded)

    def _replays_of(self, comm: Any) -> _Replays | None:
        implementation = comm.get_backend_impl()
        if not isinstance(implementation, Native):
            return None
        native = implementation.use()
        followed, found = self._replays.get(comm, (None, None))
        if followed is not native:
            try:
                found = _Replays(native, self._replayed)
            except towline.Unsupported:
                found = None
            self._replays[comm] = (native, found)
        return found

    def _replayed(self, recorded: _Recorded, op_id: int, event: str) -> None:
        with self._lock:
            for place, line in recorded.happened(op_id, event):
                self._file.write(f"{place}|{line}|{self._now()}\n")

    def _issued(self, comm: Any, op_id: int, told: Any) -> None:
        if hasattr(told, "new_comm"):
            self._follow(told.new_comm)
        elif type(told).__name__ == "FinalizePostHookArgs":
            self._finalized(comm)
        elif getattr(told, "work", None) is not None:
            with self._lock:
                number, work, graph = self._open.pop(op_id, (0, 0, 0))
            if work == 0:
                self._write(f"WARN|post-hook missing work_id for op_id {op_id}")
            elif self._lifecycle and graph == 0:
                told.work.register_work_start_hook(lambda: self._event(number, work, "S"))
                told.work.register_work_end_hook(lambda: self._event(number, work, "E"))
                told.work.register_work_wait_pre_hook(lambda: self._event(number, work, "W"))

    def _event(self, number: int, work: int, event: str) -> None:
        with self._lock:
            if event in (pending := self._pending.get(work, ("", 0, []))[2]):
                pending.remove(event)
                if not pending:
                    del self._pending[work]
            self._file.write(f"C{number}|{event}|{self._now()}\n")

    def _finalized(self, comm: Any) -> None:
        self._comms = [one for one in self._comms if one is not comm]
        self._replays.pop(comm, None)
        if self._comms:
            return
        with self._lock:
            for work, (name, number, events) in self._pending.items():
                self._file.write(f"WARN|comm={name}|leaked work_id={work}|corr_id={number}|pending_events={_joined(events)}\n")
            self._pending.clear()

    def _now(self) -> str:
        return f"+{max(time.time() - self._base, 0):.3f}"

    def _write(self, line: str) -> None:
        with self._lock:
            self._file.write(line + "\n")

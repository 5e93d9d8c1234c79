"""The last operations of communicators, in the format of torch's flight recorder.

Towline records every operation of a communicator itself (`flight_records()`); this one follows several of them, those
that are split off later among them, and keeps what it saw when they are gone.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections import deque
from typing import Any

import torch

_DTYPES = {torch.float16: "Half", torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short"}
_DTYPES |= {torch.int32: "Int", torch.int64: "Long", torch.float32: "Float", torch.float64: "Double", torch.bfloat16: "BFloat16"}
_MESSAGES = ("send", "recv")


def _describe(values: Any) -> tuple[list[list[int]], list[str]]:
    tensors = [one for one in (values if isinstance(values, (list, tuple)) else [values]) if isinstance(one, torch.Tensor)]
    kinds = [_DTYPES.get(one.dtype, str(one.dtype).removeprefix("torch.")) for one in tensors]
    return [list(one.shape) for one in tensors], kinds


class FlightRecorderHook:
    """Keeps `max_entries` operations in all. `isolated`: its own, not those that others of the process have seen, as always."""

    def __init__(self, max_entries: int = 2000, isolated: bool = False) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=max_entries)
        self._open: dict[int, dict[str, Any]] = {}  # by the operation's number, until its post hook
        self._groups: dict[str, dict[str, str]] = {}
        self._counts: dict[str, list[int]] = {}  # of each group: collectives, messages
        self._handles: list[Any] = []
        self._last = 0
        self._lock = threading.Lock()

    def register_with_comm(self, comm: Any) -> None:
        name = comm.get_name()
        with self._lock:
            ranks = ",".join(str(rank) for rank in range(comm.get_size()))
            self._groups[name] = {"name": name, "desc": comm.get_backend(), "ranks": f"[{ranks}]"}
            self._counts.setdefault(name, [0, 0])
        self._handles.append(comm.register_pre_hook(lambda *told: self._began(comm, *told)))
        self._handles.append(comm.register_post_hook(self._issued))

    def unregister(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def is_enabled(self) -> bool:
        return bool(self._handles)

    # ---- what happens

    def _began(self, comm: Any, operation: Any, op_id: int, told: Any) -> None:
        if operation.name in ("finalize", "new_window"):
            return
        name, is_message = comm.get_name(), operation.name in _MESSAGES
        given = getattr(told, "input", getattr(told, "tensor", None))
        sizes, kinds = _describe(given)
        out_sizes, out_kinds = _describe(getattr(told, "output", given))
        with self._lock:
            self._last += 1
            counts = self._counts[name]
            counts[is_message] += 1
            entry = {
                "record_id": self._last,
                "op_id": op_id,
                "pg_id": list(self._groups).index(name),
                "process_group": [name, comm.get_backend()],
                "collective_seq_id": counts[0],
                "p2p_seq_id": counts[1],
                "profiling_name": f"{comm.get_backend()}:{operation.name}",
                "input_sizes": sizes,
                "input_dtypes": kinds,
                "output_sizes": out_sizes,
                "output_dtypes": out_kinds,
                "time_created_ns": time.time_ns(),
                "state": "scheduled",
                "is_p2p": is_message,
                "retired": False,
                "timeout_ms": max(1, int(comm.get_options().timeout.total_seconds() * 1000)),
                "frames": [],
            }
            self._entries.append(entry)
            self._open[op_id] = entry
            if len(self._open) > self._entries.maxlen:  # of operations that failed when they were issued
                del self._open[next(iter(self._open))]

    def _issued(self, op_id: int, told: Any) -> None:
        with self._lock:
            entry = self._open.pop(op_id, None)
        child = getattr(told, "new_comm", None)
        if child is not None:
            self.register_with_comm(child)
        if entry is None:
            return
        entry["state"] = "started"
        entry["time_discovered_started_ns"] = time.time_ns()

        def ended() -> None:
            now = time.time_ns()
            entry.update(state="completed", retired=True, time_discovered_completed_ns=now)
            entry["duration_ms"] = max(now - entry["time_created_ns"], 1) / 1e6

        if told.work is None:
            ended()
        else:
            told.work.register_work_end_hook(ended)

    # ---- what is asked

    def size(self) -> int:
        return len(self._entries)

    def reset(self) -> None:
        with self._lock:
            self._entries.clear()

    def _dump(self, include_completed: bool) -> dict[str, Any]:
        with self._lock:
            entries = [dict(one) for one in self._entries if include_completed or not one["retired"]]
            status = {}
            for number, (name, counts) in enumerate(self._counts.items()):
                ended = [one["collective_seq_id"] for one in self._entries if one["retired"] and one["process_group"][0] == name]
                told = {"last_enqueued_collective": counts[0], "last_started_collective": counts[0]}
                status[str(number)] = {**told, "last_completed_collective": max(ended, default=-1)}
            return {"version": "2.10", "pg_config": dict(self._groups), "pg_status": status, "entries": entries}

    def dump_json(self, include_completed: bool = True) -> str:
        return json.dumps(self._dump(include_completed))

    def dump_file(self, rank: int, include_completed: bool = True) -> str:
        """Pickled, for torch's fr_trace; says where: $TORCHCOMM_FR_DUMP_TEMP_FILE and the rank, unless
        TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME says that the former is the whole name."""
        folder = os.environ.get("XDG_CACHE_HOME", "/tmp")
        path = os.environ.get("TORCHCOMM_FR_DUMP_TEMP_FILE", os.path.join(folder, "torchcomms", "comm_lib_trace_rank_"))
        if os.environ.get("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME", "0").lower() not in ("1", "true", "yes", "y"):
            path += str(rank)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            pickle.dump(self._dump(include_completed), file)
        return path

"""The last operations of communicators, as they are recorded by Towline itself."""

from __future__ import annotations

import json
from typing import Any


class FlightRecorderHook:
    """Shows what the communicators it is registered with did; `max_entries` of each at most."""

    def __init__(self, max_entries: int = 2000, isolated: bool = False) -> None:
        self._max_entries = max_entries
        self._comms: list[Any] = []

    def register_with_comm(self, comm: Any) -> None:
        self._comms.append(comm)

    def unregister(self) -> None:
        self._comms.clear()

    def is_enabled(self) -> bool:
        return bool(self._comms)

    def _dumps(self) -> list[dict]:
        natives = [getattr(comm._implementation, "comm", None) for comm in self._comms]
        return [native.flight_records() for native in natives if native is not None and not native.closed]

    def size(self) -> int:
        return sum(len(dump["entries"][-self._max_entries :]) for dump in self._dumps())

    def dump_json(self, include_completed: bool = True) -> str:
        whole: dict[str, Any] = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}
        for dump in self._dumps():
            whole["pg_config"].update(dump.get("pg_config", {}))
            whole["pg_status"].update(dump.get("pg_status", {}))
            entries = dump["entries"][-self._max_entries :]
            whole["entries"] += [one for one in entries if include_completed or one["state"] != "completed"]
        return json.dumps(whole)

    def dump_file(self, path: str) -> None:
        with open(path, "w") as file:
            file.write(self.dump_json())

    def reset(self) -> None:
        for comm in self._comms:
            comm._implementation.use().reset_flight_records()

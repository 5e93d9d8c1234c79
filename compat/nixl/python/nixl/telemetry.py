"""Reads the buffer of events that an agent leaves in NIXL_TELEMETRY_DIR, from any process.

The file is a ring that one agent fills and one reader empties; include/common/cyclic_buffer.h is the same for C++. It is
read and written by calls, not mapped, so that a file that is cut short meanwhile is an error, and not a signal that ends the
process.
"""

from __future__ import annotations

import enum
import os
import stat
import struct
from typing import NamedTuple

__all__ = ["EventKind", "TelemetryEvent", "TelemetryFileError", "TelemetryReader"]

_HEADER = struct.Struct("=QQIIQQ")  # write position, read position, version, expected version, capacity, mask
_READ_POSITION = struct.Struct("=Q")
_READ_POSITION_AT = 8
_EVENT = struct.Struct("=I4xQ")
_VERSION = 4


class EventKind(enum.IntEnum):
    """What an event counts. Times are in microseconds."""

    AGENT_TX_BYTES = 0
    AGENT_RX_BYTES = 1
    AGENT_TX_REQUESTS_NUM = 2
    AGENT_RX_REQUESTS_NUM = 3
    AGENT_MEMORY_REGISTERED = 4
    AGENT_MEMORY_DEREGISTERED = 5
    AGENT_XFER_TIME = 6
    AGENT_XFER_POST_TIME = 7
    AGENT_ERR_NOT_POSTED = 8
    AGENT_ERR_INVALID_PARAM = 9
    AGENT_ERR_BACKEND = 10
    AGENT_ERR_NOT_FOUND = 11
    AGENT_ERR_MISMATCH = 12
    AGENT_ERR_NOT_ALLOWED = 13
    AGENT_ERR_REPOST_ACTIVE = 14
    AGENT_ERR_UNKNOWN = 15
    AGENT_ERR_NOT_SUPPORTED = 16
    AGENT_ERR_REMOTE_DISCONNECT = 17
    AGENT_ERR_CANCELED = 18
    AGENT_ERR_NO_TELEMETRY = 19
    AGENT_TELEMETRY_EVENTS_DROPPED = 20


class TelemetryEvent(NamedTuple):
    kind: int  # an EventKind, or the number of one that this version does not know
    value: int

    @property
    def name(self) -> str:
        """As in NIXL's readers and Prometheus's metrics: "agent_tx_bytes"."""
        return self.kind.name.lower() if isinstance(self.kind, EventKind) else "unknown_event"


class TelemetryFileError(RuntimeError):
    """The file is no telemetry buffer, or one that this version can't read."""


_KINDS = {int(kind): kind for kind in EventKind}


class _Ring:
    """One file, which may have lost its name to another one meanwhile."""

    def __init__(self, path: str) -> None:
        self._path = path
        # Without waiting for the other end, if it is a pipe.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            self.close()
            raise self._refusal("it is no regular file")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def is_at(self, path: str) -> bool:
        """False if another file has the name now. True if none has."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._file))
        except FileNotFoundError:
            return True

    def take(self, limit: int) -> list[TelemetryEvent]:
        header = os.pread(self._file, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            if not header:
                return []  # the agent is making it
            raise self._refusal(f"it has {len(header)} bytes, fewer than a header")
        write, read, version, _, capacity, mask = _HEADER.unpack(header)
        if version == 0:
            return []  # the agent writes the version last
        if version != _VERSION:
            raise self._refusal(f"its layout is version {version}, not {_VERSION}")
        if capacity == 0 or capacity & mask or mask != capacity - 1 or write > mask or read > mask:
            raise self._refusal(f"positions {write} and {read} do not fit {capacity} events")
        if os.fstat(self._file).st_size < _HEADER.size + capacity * _EVENT.size:
            raise self._refusal(f"it is too short for {capacity} events")
        events: list[TelemetryEvent] = []
        while read != write and len(events) < limit:
            end = write if read < write else capacity
            count = min(end - read, limit - len(events))
            part = os.pread(self._file, count * _EVENT.size, _HEADER.size + read * _EVENT.size)
            if len(part) != count * _EVENT.size:
                raise self._refusal("it was cut short while it was read")
            events += (TelemetryEvent(_KINDS.get(kind, kind), value) for kind, value in _EVENT.iter_unpack(part))
            read = (read + count) & mask
        if events:
            os.pwrite(self._file, _READ_POSITION.pack(read), _READ_POSITION_AT)
        return events

    def _refusal(self, why: str) -> TelemetryFileError:
        return TelemetryFileError(
            f"'{self._path}' is no telemetry buffer that can be read: {why}. Name the file of a running agent, "
            "NIXL_TELEMETRY_DIR/<agent>; remove this one if no agent uses it"
        )


class TelemetryReader:
    """Takes the events out of an agent's buffer, oldest first. One reader a file: two share the events.

    The file need not be there yet. When an agent ends, what it left is read; when the next agent of that name goes on in the
    file or puts another in its place, the reader follows. Not to be used by several threads at once.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._ring: _Ring | None = None

    def read(self, limit: int = 4096) -> list[TelemetryEvent]:
        """At most `limit` events; none if none are there, also if there is no file yet. Does not wait.

        Raises TelemetryFileError for a file that makes no sense, and looks again in the next call; OSError if the file can't
        be opened to read and to write.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        try:
            ring = self._open()
            events = ring.take(limit)
            if events or ring.is_at(self.path):
                return events
            self.close()  # everything has been read of the old one
            return self._open().take(limit)
        except FileNotFoundError:
            return []  # before the first agent, or between two
        except TelemetryFileError:
            self.close()
            raise

    def close(self) -> None:
        """Events that come later stay in the file. The next read() opens it again."""
        if self._ring is not None:
            self._ring.close()
        self._ring = None

    def _open(self) -> _Ring:
        if self._ring is None:
            self._ring = _Ring(self.path)
        return self._ring

    def __enter__(self) -> TelemetryReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

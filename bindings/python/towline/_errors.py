"""Statuses, and the exceptions that stand for them."""

from __future__ import annotations

import errno

from . import _core
from ._status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Error(RuntimeError):
    """The base of Towline's exceptions. `status` is the kind of failure; the text says what was tried and with which values."""

    status = Status.INTERNAL
    peer: Any = None
    """The Peer that the work was with."""
    backend: str | None = None
    """That moved the bytes."""
    result: Any = None
    """The Result of the post or transfer: what has moved, which blocks failed, which side is fenced."""

    def __init__(self, message: str = "", status: Status | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status

    def __reduce__(self) -> Any:
        # Peers and results stay in the process that they belong to.
        return type(self), (str(self), self.status), {"backend": self.backend}

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Again(Error, BlockingIOError):
    """No credit or space now; try again."""

    status = Status.AGAIN
    errno = errno.EAGAIN


class InvalidArgument(Error, ValueError):
    """An argument makes no sense."""

    status = Status.INVALID_ARGUMENT


class OutOfRange(Error, IndexError):
    """An index or address is outside."""

    status = Status.OUT_OF_RANGE


class NotFound(Error, LookupError):
    """There is no such thing."""

    status = Status.NOT_FOUND


class AlreadyExists(Error, FileExistsError):
    """There is such a thing already."""

    status = Status.ALREADY_EXISTS
    errno = errno.EEXIST


class PermissionDenied(Error, PermissionError):
    """Not allowed."""

    status = Status.PERMISSION_DENIED
    errno = errno.EACCES


class Mismatch(Error, ValueError):
    """Sizes do not fit together."""

    status = Status.MISMATCH


class LimitExceeded(Error):
    """More than there may be."""

    status = Status.LIMIT_EXCEEDED


class OutOfMemory(Error, MemoryError):
    """Out of memory."""

    status = Status.OUT_OF_MEMORY


class NoSpace(Error, OSError):
    """No space is left where it should be written."""

    status = Status.NO_SPACE
    errno = errno.ENOSPC


class Unsupported(Error, NotImplementedError):
    """Not supported here."""

    status = Status.UNSUPPORTED


class Busy(Error):
    """Still in flight or in use."""

    status = Status.BUSY


class Cancelled(Error):
    """The transfer was cancelled."""

    status = Status.CANCELLED


class TimedOut(Error, TimeoutError):
    """The deadline passed, and the work has ended."""

    status = Status.TIMED_OUT
    errno = errno.ETIMEDOUT


class NotYet(TimedOut):
    """The wait gave up, and the work goes on: wait again, or cancel it."""

    status = Status.NOT_YET


class PeerLost(Error, ConnectionError):
    """The peer is gone."""

    status = Status.PEER_LOST
    errno = errno.ECONNRESET


class PeerRestarted(PeerLost):
    """The peer came back as a new incarnation."""

    status = Status.PEER_RESTARTED


class Stale(Error):
    """The registration or handle is gone."""

    status = Status.STALE


class Corrupt(Error, ValueError):
    """A checksum does not match."""

    status = Status.CORRUPT


class Short(Error, ValueError):
    """Fewer bytes than there should be: metadata that was cut off, a file that is shorter than its blocks."""

    status = Status.SHORT


class ProtocolError(Error, ValueError):
    """Metadata, or data from a peer or server, is not in the format that was expected."""

    status = Status.PROTOCOL


class IoError(Error, OSError):
    """Input or output failed."""

    status = Status.IO
    errno = errno.EIO


class Forked(Error):
    """The handle belongs to the parent process."""

    status = Status.FORKED


class Closed(Error):
    """The agent is closed."""

    status = Status.CLOSED


class NoRoute(Error):
    """No backend reaches the memory; the text says why for each."""

    status = Status.NO_ROUTE


class Unreachable(Error, ConnectionError):
    """The address can't be reached."""

    status = Status.UNREACHABLE
    errno = errno.EHOSTUNREACH


class AddressInUse(Error, OSError):
    """The address is in use."""

    status = Status.ADDRESS_IN_USE
    errno = errno.EADDRINUSE


class Internal(Error):
    """A mistake in Towline."""

    status = Status.INTERNAL


_BY_STATUS = {
    kind.status: kind
    for kind in (
        *(Again, InvalidArgument, OutOfRange, NotFound, AlreadyExists, PermissionDenied, Mismatch, LimitExceeded),
        *(NotYet, OutOfMemory, NoSpace, Internal, Unsupported, Busy, Cancelled, TimedOut, PeerLost, PeerRestarted, Stale, Corrupt, IoError, Forked, Closed),
        *(NoRoute, Unreachable, AddressInUse, Short, ProtocolError),
    )
}


# As users know them, in tracebacks and pickles.
for _kind in (Error, *_BY_STATUS.values()):
    _kind.__module__ = "towline"


def _make(status: int, message: str) -> Error:
    known = Status(status)
    return _BY_STATUS.get(known, Error)(message, known)


_core._install(Status, _make)

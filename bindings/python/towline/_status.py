"""Statuses. The library has the only list; _status.pyi repeats it for type checkers."""

from enum import Enum, IntEnum

from . import _core


class _Named(IntEnum):
    """Shown by name: print(await move) says Status.OK, not 0."""

    __str__ = Enum.__str__

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)


Status = _Named("Status", _core._status_list(), module="towline")
Status.__doc__ = "What became of a call: 0 is done, 1 in progress, everything negative an error."

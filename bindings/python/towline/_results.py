"""Named tuples, for calls that return several values."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NamedTuple

    from ._status import Status

    class StorageInfo(NamedTuple):
        """A file, block device or object that is there."""

        kind: str  # "file", "block" or "object"
        nbytes: int
        modified_ns: int  # since 1970

    class StoredObject(NamedTuple):
        """An entry of list_storage()."""

        uri: str
        info: StorageInfo

    class FailedRange(NamedTuple):
        """Blocks that were not moved, by their position in the order of the picks."""

        first: int
        blocks: int
        status: Status
        vendor_code: int

    class DirectoryEvent(NamedTuple):
        """kind: "put", "gone", or once "synced", when everything that was there at first has been told."""

        kind: Literal["put", "gone", "synced"]
        key: str
        value: bytes

else:  # without typing, which takes longer to import than the rest
    from collections import namedtuple

    StorageInfo = namedtuple("StorageInfo", "kind nbytes modified_ns", module="towline")
    StoredObject = namedtuple("StoredObject", "uri info", module="towline")
    FailedRange = namedtuple("FailedRange", "first blocks status vendor_code", module="towline")
    DirectoryEvent = namedtuple("DirectoryEvent", "kind key value", module="towline")

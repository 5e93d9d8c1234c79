"""What names a file, and what is known of one."""

from __future__ import annotations

from os import PathLike, fsdecode, fspath

from . import _core, _errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class FileInfo:
    """A file or block device that is there."""

    __slots__ = ("kind", "bytes", "modified_ns")

    def __init__(self, kind: str, bytes: int, modified_ns: int) -> None:
        self.kind = kind  # "file" or "block"
        self.bytes = bytes
        self.modified_ns = modified_ns  # since 1970

    def __repr__(self) -> str:
        return f"FileInfo(kind={self.kind!r}, bytes={self.bytes}, modified_ns={self.modified_ns})"


def place_of(file: str | PathLike[str] | int | Any) -> tuple[str | None, int]:
    """(URI, -1), or (None, descriptor). A str that begins like a URI is one; a Path is a path whatever is in it."""
    if isinstance(file, str):
        return (file if _has_scheme(file) else "file:" + file), -1
    if isinstance(file, (bytes, PathLike)):
        return "file:" + fsdecode(fspath(file)), -1
    if isinstance(file, int) and not isinstance(file, bool):
        return None, file
    if hasattr(file, "fileno"):
        return None, file.fileno()
    raise _errors.InvalidArgument(f"file: a path, a URI, a descriptor or an open file, not {type(file).__name__}")


def _has_scheme(text: str) -> bool:
    scheme, colon, _ = text.partition(":")
    return bool(colon) and scheme.isascii() and scheme[:1].isalpha() and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum()


def flags_of(create: bool, truncate: bool, direct: bool, replace: bool) -> int:
    return (
        (create and _core._STORAGE_CREATE)
        | (truncate and _core._STORAGE_TRUNCATE)
        | (direct and _core._STORAGE_DIRECT)
        | (replace and _core._STORAGE_REPLACE)
    )

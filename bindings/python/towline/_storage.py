"""Names of files and objects, and what is known of one."""

from __future__ import annotations

from os import PathLike, fsdecode, fspath

from . import _core, _errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def place_of(what: str | PathLike[str] | int | Any) -> tuple[str | None, int]:
    """(URI, -1), or (None, descriptor). A str that begins like a URI is one; a Path is a path whatever is in it."""
    if isinstance(what, str):
        return (what if _has_scheme(what) else "file:" + what), -1
    if isinstance(what, (bytes, PathLike)):
        return "file:" + fsdecode(fspath(what)), -1
    if isinstance(what, int) and not isinstance(what, bool):
        return None, what
    if hasattr(what, "fileno"):
        return None, what.fileno()
    raise _errors.InvalidArgument(f"a path, a URI, a descriptor or an open file, not {type(what).__name__}")


def _has_scheme(text: str) -> bool:
    scheme, colon, _ = text.partition(":")
    return bool(colon) and scheme.isascii() and scheme[:1].isalpha() and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum()


def flags_of(create: bool, truncate: bool, direct: bool, replace: bool, conditional: bool) -> int:
    return (
        (create and _core._STORAGE_CREATE)
        | (truncate and _core._STORAGE_TRUNCATE)
        | (direct and _core._STORAGE_DIRECT)
        | (replace and _core._STORAGE_REPLACE)
        | (conditional and _core._STORAGE_CONDITIONAL)
    )

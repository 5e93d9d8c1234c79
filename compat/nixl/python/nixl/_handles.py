"""Prepared lists and requests, as the agent hands them out. See the extension's handles.cc."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._bindings import _DlistHandle, _set_complain, _XferHandle
from .logging import get_logger

if TYPE_CHECKING:

    class _Handle:
        _agent: Any
        _handle: int
        _released: bool

        def __init__(self, agent: Any, value: int) -> None: ...
        def release(self) -> None: ...

    class nixl_prepped_dlist_handle(_Handle): ...

    class nixl_xfer_handle(_Handle): ...

else:
    nixl_prepped_dlist_handle, nixl_xfer_handle = _DlistHandle, _XferHandle

__all__ = ["nixl_prepped_dlist_handle", "nixl_xfer_handle"]

logger = get_logger(__name__)


@_set_complain
def _complain(kind: str, value: int, error: object) -> None:
    """Logs that a handle nobody holds any more was not freed. May run while the interpreter ends and nothing works."""
    try:
        logger.error("%s %#x was not freed: %s", kind.rpartition(".")[2], value, error)
    except Exception:
        pass

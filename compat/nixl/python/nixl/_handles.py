"""Prepared lists and requests, as the agent hands them out. See the extension's handles.cc."""

from __future__ import annotations

from ._bindings import _DlistHandle as nixl_prepped_dlist_handle, _set_complain, _XferHandle as nixl_xfer_handle
from .logging import get_logger

__all__ = ["nixl_prepped_dlist_handle", "nixl_xfer_handle"]

logger = get_logger(__name__)


@_set_complain
def _complain(kind: str, value: int, error: object) -> None:
    """Logs that a handle nobody holds any more was not freed. May run while the interpreter ends and nothing works."""
    try:
        logger.error("%s %#x was not freed: %s", kind.rpartition(".")[2], value, error)
    except Exception:
        pass

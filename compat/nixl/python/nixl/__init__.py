"""Towline under the interface of NIXL: agents that register memory and move it between one another.

A program that imports nixl, nixl_cu12, nixl_cu13 or nixl_rocm runs on Towline without a changed line. What maps to what, and
what behaves better, is in docs/migrating-from-nixl.md.
"""

from __future__ import annotations

from . import _bindings, _utils, logging
from . import _api
from ._bindings import *  # noqa: F403  the lists, enumerations and exceptions, as nixl itself has them here
from ._api import (
    DEFAULT_COMM_PORT,
    nixl_agent,
    nixl_agent_config,
    nixl_backend_handle,
    nixl_prepped_dlist_handle,
    nixl_thread_sync_t,
    nixl_xfer_handle,
    nixlBind,
)
from ._utils import ba_buf, free_passthru, malloc_passthru, verify_transfer
from .logging import LOGGING_CONFIG, get_logger, set_log_level_by_env, setup_logging

__version__ = "1.5.1"  # of the interface; what is behind it, is _bindings.version
__all__ = [
    *_bindings.__all__,
    "DEFAULT_COMM_PORT",
    "LOGGING_CONFIG",
    "ba_buf",
    "free_passthru",
    "get_logger",
    "malloc_passthru",
    "nixlBind",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
    "set_log_level_by_env",
    "setup_logging",
    "verify_transfer",
]

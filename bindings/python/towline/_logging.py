"""The library's log in Python's `logging`."""

from __future__ import annotations

import atexit
import os
import threading
import traceback

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger

_LEVELS = (0, 40, 30, 20, 10, 5)  # of logging, by the library's: off, error, warning, info, debug, trace

_changes = threading.Lock()
_thread: threading.Thread | None = None


def log_to(logger: Logger | str | None = "towline") -> None:
    """Messages of the library go to this logger from now on, by default `logging.getLogger("towline")`; with None to
    standard error again, as at the start.

    They are handed over to a thread, since the library logs while it holds locks. The setting `log.level` says which there
    are, before the logger's own level does. Of messages that come faster than they are handled, most are dropped, and their
    number is logged. A forked child logs to standard error.
    """
    global _thread
    import logging

    if isinstance(logger, str):
        logger = logging.getLogger(logger)
    with _changes:
        if _thread is not None:
            _core._stop_log()
            _thread.join()
            _thread = None
        if logger is None:
            return
        _core._start_log()
        _thread = threading.Thread(target=_pass_on, args=(logger,), name="towline-log", daemon=True)
        _thread.start()


def _pass_on(logger: Logger) -> None:
    while (messages := _core._next_logs()) is not None:
        for level, message in messages:
            try:
                logger.log(_LEVELS[level] if level < len(_LEVELS) else 5, "%s", message)
            except Exception:  # of a filter or handler: as one that reports its own does it, and later messages still come
                traceback.print_exc()


def _in_child() -> None:
    global _thread, _changes
    _changes = threading.Lock()
    if _thread is not None:
        _thread = None
        _core._forget_log()


os.register_at_fork(after_in_child=_in_child)
atexit.register(lambda: log_to(None) if _thread is not None else None)

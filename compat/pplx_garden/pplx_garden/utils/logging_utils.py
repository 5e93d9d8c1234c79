"""Loggers as pplx-garden's programs make them."""

from __future__ import annotations

import logging

_FORMAT = "[%(asctime)s.%(msecs)03d] %(process)d %(levelname)-8s %(name)s %(message)s"
_is_setup = False


def setup(*, handler: logging.Handler | None = None, level: str | int | None = None) -> None:
    """Sends the root logger's records to the handler, by default to stderr. Only the first call counts."""
    global _is_setup
    if _is_setup:
        return
    _is_setup = True
    handler = handler or logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger()
    root.setLevel(level or logging.INFO)
    root.handlers[:] = [handler]


def get_logger(path: str) -> logging.Logger:
    return logging.getLogger(path)

"""Loggers of the nixl package.

They hang below the logger "nixl", which writes to standard output at INFO and passes nothing on. NIXL_LOG_LEVEL
(TRACE, DEBUG, INFO, WARN, ERROR or FATAL) sets another level.
"""

from __future__ import annotations

import logging
import os
import sys

# In the form that logging.config.dictConfig takes: programs add handlers of theirs and hand it to that. setup_logging() does the
# same without logging.config, which imports sockets. The level is the logger's alone, so that NIXL_LOG_LEVEL=DEBUG shows.
LOGGING_CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "simpleFormatter": {
            "format": "%(asctime)s NIXL %(levelname)-7s %(filename)s:%(lineno)d %(message)s",
            "datefmt": "%Y-%m-%d %H:%M:%S",
        }
    },
    "handlers": {
        "consoleHandler": {
            "class": "logging.StreamHandler",
            "formatter": "simpleFormatter",
            "stream": "ext://sys.stdout",
        }
    },
    "loggers": {"nixl": {"level": "INFO", "handlers": ["consoleHandler"], "propagate": False}},
}
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_configured = False


def set_log_level_by_env(nixl_logger: logging.Logger) -> None:
    """Sets the level that NIXL_LOG_LEVEL names; warns and leaves it alone when it names none."""
    name = os.environ.get("NIXL_LOG_LEVEL")
    if not name:
        return
    level = _LEVELS.get(name.upper())
    if level is None:
        nixl_logger.warning("NIXL_LOG_LEVEL is %r, but must be one of %s: ignored", name, ", ".join(_LEVELS))
    else:
        nixl_logger.setLevel(level)


def setup_logging() -> None:
    """Gives the logger "nixl" its handler and level, once per process."""
    global _configured
    if _configured:
        return
    _configured = True
    handler = logging.StreamHandler(sys.stdout)
    form = LOGGING_CONFIG["formatters"]["simpleFormatter"]
    handler.setFormatter(logging.Formatter(form["format"], form["datefmt"]))
    nixl_logger = logging.getLogger("nixl")
    nixl_logger.addHandler(handler)
    nixl_logger.setLevel(logging.INFO)
    nixl_logger.propagate = False
    set_log_level_by_env(nixl_logger)


def get_logger(name: str) -> logging.Logger:
    """The logger of a module below "nixl": "nixl._api" and "_api" give nixl.api, "__main__" gives nixl.main__."""
    setup_logging()
    return logging.getLogger("nixl." + name.removeprefix("nixl.").lstrip("_"))

"""The text log, by the name that torchcomms has for it."""

from .._clog import clog

__all__ = ["clog"]

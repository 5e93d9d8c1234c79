"""Hooks that come with torchcomms."""

from ._flight_recorder import FlightRecorderHook
from ._nan_check import NanCheckHook
from .clog import clog  # the class, which takes the name of its module here

__all__ = ["FlightRecorderHook", "NanCheckHook", "clog"]

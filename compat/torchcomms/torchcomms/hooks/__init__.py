"""Hooks that come with torchcomms."""

from ._flight_recorder import FlightRecorderHook
from ._nan_check import NanCheckHook

__all__ = ["FlightRecorderHook", "NanCheckHook"]

"""The flight recorder, by the name that torchcomms has for it."""

from .._flight_recorder import FlightRecorderHook

__all__ = ["FlightRecorderHook"]

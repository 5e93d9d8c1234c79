"""Where NIXL has its class EventOverlap: programs import it from here, too."""

from . import EventOverlap

__all__ = ["EventOverlap"]

"""Where NIXL has its class Buffer: programs import it from here, too."""

from . import Buffer

__all__ = ["Buffer"]

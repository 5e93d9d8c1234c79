"""torchcomms' Python surface on Towline: docs/migrating-from-torchcomms.md says what is the same and what is better."""

from datetime import timedelta
from importlib.metadata import entry_points


class Timeout(timedelta):
    """A timeout, by the name that torchcomms has for it."""


def is_backend_built(backend: str) -> bool:
    """Whether this or another installed package has the backend."""
    return backend in built_backends()


def built_backends() -> list[str]:
    return [point.name for point in entry_points(group="torchcomms.backends")]


def __getattr__(name: str):
    # torch.distributed looks for this while it is imported itself: from below, where a program imports us before torch.
    if name == "new_comm":
        from ._comms import new_comm

        return new_comm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


import torch.distributed  # noqa: E402, F401  before any module of ours, since it imports some of them

from . import functional, hooks, objcol  # noqa: E402
from ._comms import *  # noqa: E402, F403

if functional.is_torch_compile_supported_and_enabled():
    from .functional import _operations

    _operations.install()

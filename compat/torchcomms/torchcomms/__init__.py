"""torchcomms' Python surface on Towline: docs/migrating-from-torchcomms.md says what is the same and what is better."""

import os
import warnings
from datetime import timedelta
from importlib.metadata import entry_points

from . import functional, hooks, objcol
from ._comms import *  # noqa: F403

if os.environ.get("TORCHCOMMS_PATCH_FOR_COMPILE") == "1":
    warnings.warn("TORCHCOMMS_PATCH_FOR_COMPILE does nothing: this package has no operations for torch.compile", stacklevel=2)


class Timeout(timedelta):
    """A timeout, by the name that torchcomms has for it."""


def is_backend_built(backend: str) -> bool:
    """Whether this or another installed package has the backend."""
    return backend in built_backends()


def built_backends() -> list[str]:
    return [point.name for point in entry_points(group="torchcomms.backends")]

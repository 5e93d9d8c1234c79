"""Communicators' operations in torch.compile: traced without graph breaks, if TORCHCOMMS_PATCH_FOR_COMPILE=1.

torchcomms' own modules of this name hold its tracing's inner works, which are not here.
"""

import os
import re

_LEAST = (2, 12)  # torchcomms' requirement
_MODULES = ("async_tensor", "collectives", "dynamo", "inductor_lowering", "param_parsing", "passes", "registry")


def _pair(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"{version!r} does not begin with a version such as 2.12")
    return int(found[1]), int(found[2])


def is_torch_compile_supported(min_version: str | None = None, _current_version: str | None = None) -> bool:
    """A version that is given is judged by torchcomms' rule. The torch that runs is judged by what it can do, unless
    `min_version` asks for more."""
    if os.environ.get("TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT") == "1":
        return True
    if _current_version is not None:
        return _pair(_current_version) >= (_LEAST if min_version is None else _pair(min_version))
    from torch import __version__, library  # torch may be half imported: torch.distributed imports torchcomms

    return hasattr(library, "register_fake") and (min_version is None or _pair(__version__) >= _pair(min_version))


def is_torch_compile_supported_and_enabled(
    min_version: str | None = None, _current_version: str | None = None
) -> bool:
    return os.environ.get("TORCHCOMMS_PATCH_FOR_COMPILE") == "1" and is_torch_compile_supported(
        min_version, _current_version
    )


def __getattr__(name: str):
    if name in _MODULES:
        raise NotImplementedError(
            f"torchcomms.functional.{name} is not in this package; communicators' operations are traced by torch.compile if "
            "TORCHCOMMS_PATCH_FOR_COMPILE=1"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["is_torch_compile_supported", "is_torch_compile_supported_and_enabled"]

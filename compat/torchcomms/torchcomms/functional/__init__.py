"""Communicators' operations in torch.compile: traced without graph breaks, if TORCHCOMMS_PATCH_FOR_COMPILE=1.

torchcomms' own modules of this name hold its tracing's inner works, which are not here.
"""

import os

_MODULES = ("async_tensor", "collectives", "dynamo", "inductor_lowering", "param_parsing", "passes", "registry")


def is_torch_compile_supported(*_: object, **__: object) -> bool:
    from torch import library

    return hasattr(library, "register_fake")


def is_torch_compile_supported_and_enabled(*_: object, **__: object) -> bool:
    return os.environ.get("TORCHCOMMS_PATCH_FOR_COMPILE") == "1" and is_torch_compile_supported()


def __getattr__(name: str):
    if name in _MODULES:
        raise NotImplementedError(
            f"torchcomms.functional.{name} is not in this package; communicators' operations are traced by torch.compile if "
            "TORCHCOMMS_PATCH_FOR_COMPILE=1"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["is_torch_compile_supported", "is_torch_compile_supported_and_enabled"]

"""What torchcomms has for torch.compile: not here, and said so. torch's own functional collectives run on our process groups."""

_MODULES = ("async_tensor", "collectives", "dynamo", "inductor_lowering", "param_parsing", "passes", "registry")


def is_torch_compile_supported(*_: object, **__: object) -> bool:
    return False


def is_torch_compile_supported_and_enabled(*_: object, **__: object) -> bool:
    return False


def __getattr__(name: str):
    if name in _MODULES:
        raise NotImplementedError(
            f"torchcomms.functional.{name} is not in this package: it has no operations for torch.compile; use "
            "torch.distributed._functional_collectives over a process group of backend 'towline'"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["is_torch_compile_supported", "is_torch_compile_supported_and_enabled"]

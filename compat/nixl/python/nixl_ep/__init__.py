"""Dispatch and combine of experts' tokens under NIXL's name: not here yet.

Programs import this package to learn whether expert parallelism over NIXL is there. Importing works without torch and
without GPUs. Whatever would move tokens raises ExpertParallelismMissing, which says what to use instead.
"""

from __future__ import annotations

__all__ = ["Buffer", "Config", "EventOverlap", "ExpertParallelismMissing"]

_TEXT = (
    "nixl_ep.{what}: Towline's stand-in for NIXL has no kernels for dispatch and combine of experts' tokens yet. "
    "Use another all-to-all of your engine (SGLang: --moe-a2a-backend none or deepep; vLLM: --all2all-backend "
    "allgather_reducescatter), or NVIDIA's own nixl in this environment. KV transfers (nixl) are not affected."
)


class ExpertParallelismMissing(NotImplementedError):
    """Raised by every use of what is not here."""

    def __init__(self, what: str) -> None:
        super().__init__(_TEXT.format(what=what))


class _Missing(type):
    """Every attribute of such a class says that it is not here, so that no part of it seems to work."""

    def __call__(cls, *args, **kwargs):
        raise ExpertParallelismMissing(cls.__name__)

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise ExpertParallelismMissing(f"{cls.__name__}.{name}")


class Buffer(metaclass=_Missing):
    """Memory and kernels that exchange tokens among the ranks of a group of experts."""


class Config(metaclass=_Missing):
    """How many multiprocessors and chunks the kernels for high throughput use."""


class EventOverlap(metaclass=_Missing):
    """The end of an exchange, as an event of a CUDA stream."""


def __getattr__(name: str):
    if name == "topk_idx_t":
        import torch

        return torch.int64
    raise AttributeError(f"module 'nixl_ep' has no attribute {name!r}")

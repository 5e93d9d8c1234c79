"""What is not here, and says so by name."""

from __future__ import annotations

_TEXT = (
    "nixl_ep.{what} is not in Towline's stand-in for NIXL: it exchanges experts' tokens in low-latency mode, among GPUs of one host. "
    "Use another all-to-all of your engine (SGLang: --moe-a2a-backend none or deepep; vLLM: --all2all-backend "
    "allgather_reducescatter), or NVIDIA's own nixl in this environment. KV transfers (nixl) are not affected."
)


class ExpertParallelismMissing(NotImplementedError):
    """Raised by every use of what is not here."""

    def __init__(self, what: str) -> None:
        super().__init__(_TEXT.format(what=what))


class Missing(type):
    """Every attribute of such a class says that it is not here, so that no part of it seems to work."""

    def __call__(cls, *args, **kwargs):
        raise ExpertParallelismMissing(cls.__name__)

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise ExpertParallelismMissing(f"{cls.__name__}.{name}")


class Config(metaclass=Missing):
    """How many multiprocessors and chunks the kernels for high throughput use."""

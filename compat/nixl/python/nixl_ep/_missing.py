"""What is not here, and says so by name."""

from __future__ import annotations

_TEXT = (
    "nixl_ep.{what} is not in Towline's stand-in for NIXL: it exchanges experts' tokens in low-latency mode, and in batches. "
    "Use another all-to-all of your engine (SGLang: --moe-a2a-backend none or deepep; vLLM: --all2all-backend "
    "allgather_reducescatter), or NVIDIA's own nixl in this environment. KV transfers (nixl) are not affected."
)


class ExpertParallelismMissing(NotImplementedError):
    """Raised by every use of what is not here."""

    def __init__(self, what: str) -> None:
        super().__init__(_TEXT.format(what=what))

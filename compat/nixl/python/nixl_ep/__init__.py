"""Dispatch and combine of experts' tokens under NIXL's name, among GPUs (docs/experts.md).

Between hosts it has met a GPU that all ranks shared, and no NIC yet. Programs import this package to learn whether expert
parallelism over NIXL is there, so importing works without torch and without GPUs. What is not here raises
ExpertParallelismMissing, which says what to use instead.
"""

from __future__ import annotations

from ._missing import ExpertParallelismMissing
from .buffer import Buffer
from .config import Config
from .utils import EventOverlap

__all__ = ["Buffer", "Config", "EventOverlap", "ExpertParallelismMissing"]


def __getattr__(name: str):
    if name == "topk_idx_t":
        import torch

        return torch.int64
    raise AttributeError(f"module 'nixl_ep' has no attribute {name!r}")

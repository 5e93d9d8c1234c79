"""torch.distributed over Towline.

    import towline.torch_distributed            # torch before 2.14; later ones find it by themselves
    torch.distributed.init_process_group(backend="towline")     # CPU and GPU; with 2.14 also "cpu:towline,cuda:nccl"

A group is `towline.collectives.Communicator`s that meet in torch's own store.
"""

from __future__ import annotations

import os

import torch.distributed as dist

from ._torch_group import NAME, create

__all__ = ["NAME", "register"]


def _devices() -> list[str]:
    """The devices for which the name alone means us. Asking torch would start CUDA in a process that may fork."""
    return ["cpu", "cuda"] if any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))) else ["cpu"]


def register() -> None:
    """Makes the backend known to torch.distributed; again does nothing."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=_devices())


register()

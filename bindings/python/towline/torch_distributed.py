"""torch.distributed over Towline.

    import towline.torch_distributed            # torch before 2.15; later ones find it by themselves
    torch.distributed.init_process_group(backend="towline")     # or "cpu:towline,cuda:nccl"

A group is a `towline.collectives.Communicator` that meets in torch's own store.
"""

from __future__ import annotations

import torch.distributed as dist

from ._torch_group import NAME, create

__all__ = ["NAME", "register"]


def register() -> None:
    """Makes the backend known to torch.distributed; again does nothing."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


register()

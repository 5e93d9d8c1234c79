"""all_reduce fused with a residual addition and RMSNorm, as decoding engines call it after each row-parallel layer.

    from towline.torch_norm import all_reduce_rms_norm

    hidden = all_reduce_rms_norm(partial, residual, weight, epsilon=1e-5)      # residual += sum of partials, in place

It is one kernel for a group of the backend "towline" on GPUs (docs/gpu-collectives.md), and the steps one by one for any other
group. torch.compile traces it as one operator, torch.ops.towline.all_reduce_rms_norm. There is no backward.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import _errors, _torch_gpu
from ._torch_group import Operations

__all__ = ["all_reduce_rms_norm"]


def all_reduce_rms_norm(
    tensor: torch.Tensor,
    residual: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """RMSNorm over the last dimension of (sum of all ranks' `tensor`) + `residual`. `residual` becomes that sum."""
    group = group or dist.group.WORLD
    if group is None:
        raise _errors.InvalidArgument("there is no process group: call torch.distributed.init_process_group first")
    return torch.ops.towline.all_reduce_rms_norm(tensor, residual, weight, epsilon, group.group_name)


def _fused(tensor: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None, group: dist.ProcessGroup) -> bool:
    """Whether one kernel can do it. The same on every rank for tensors alike."""
    dense = tensor.is_contiguous() and (residual is None or residual.is_contiguous())
    alike = all(one is None or one.dtype == tensor.dtype for one in (residual, weight))
    return dense and alike and tensor.dtype in (torch.float32, torch.float16, torch.bfloat16) and tensor.numel() != 0


def _backend_of(group: dist.ProcessGroup, tensor: torch.Tensor) -> Operations | None:
    if isinstance(group, Operations):
        return group
    backend = group._get_backend(tensor.device)
    return backend if isinstance(backend, Operations) else None


def _all_reduce_rms_norm(
    tensor: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None, epsilon: float, group_name: str
) -> torch.Tensor:
    group = c10d._resolve_process_group(group_name)
    gpu = _torch_gpu.gpu
    backend = _backend_of(group, tensor)
    if backend is not None and gpu.holds(tensor) and _fused(tensor, residual, weight, group):
        index = gpu.index(tensor)
        output = torch.empty_like(tensor)
        try:
            backend.gpu_communicator(index).all_reduce_rms_norm(
                tensor,
                residual,
                None if weight is None else weight.contiguous(),
                stream=gpu.stream(index),
                epsilon=epsilon,
                width=tensor.shape[-1],
                output=output,
            )
        except _errors.Unsupported:  # such as over NCCL: every rank gets the same answer
            pass
        else:
            gpu.settle(index)
            return output
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    if residual is not None:
        total = residual.add_(total)
    return torch.nn.functional.rms_norm(total, (tensor.shape[-1],), weight, epsilon)


def _empty_like(tensor, residual, weight, epsilon, group_name):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


_library = torch.library.Library("towline", "FRAGMENT")
_library.define(
    "all_reduce_rms_norm(Tensor tensor, Tensor(a!)? residual, Tensor? weight, float epsilon, str group_name) -> Tensor",
)
_library.impl("all_reduce_rms_norm", _all_reduce_rms_norm, "CompositeExplicitAutograd")
_library._register_fake("all_reduce_rms_norm", _empty_like)

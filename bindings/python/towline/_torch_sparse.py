"""all_reduce of sparse tensors, such as the gradients of torch.nn.Embedding(sparse=True).

Every rank gets the entries of all ranks and adds them up in rank order, so the sum is the same everywhere.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from . import _errors, collectives

_NARROW = (torch.float16, torch.bfloat16)  # added up in float32
_MOST_DIMENSIONS = 64  # of torch's own operations


def all_reduce(communicator: collectives.Communicator, tensor: torch.Tensor, op: int, timeout: float | None) -> None:
    """Sums or averages tensors of layout sparse_coo on the CPU, in place. Blocks: sizes come before entries.

    Ranks may have any number of entries. Raises InvalidArgument on all ranks where their shapes differ. `timeout`: in seconds.
    """
    if op not in (collectives.ReduceOp.SUM, collectives.ReduceOp.AVG):
        raise _errors.Unsupported(f"sparse tensors can't be reduced by {collectives.ReduceOp(op).name.lower()}; make them dense first")
    deadline = None if timeout is None else time.monotonic() + timeout

    def gathered(outputs: list[torch.Tensor], one: torch.Tensor) -> list[torch.Tensor]:
        left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
        communicator.all_gather(outputs, one, async_op=False, timeout=left)
        return outputs

    with torch.no_grad():
        mine = tensor.detach().coalesce()
        indices, values = mine.indices().contiguous(), mine.values().contiguous()
        if mine.dim() > _MOST_DIMENSIONS:
            raise _errors.Unsupported(f"a sparse tensor of {mine.dim()} dimensions can't be reduced; {_MOST_DIMENSIONS} are the most")
        # As many numbers on every rank, whatever the shapes.
        numbers = torch.full((2 + _MOST_DIMENSIONS,), -1)
        numbers[: 2 + mine.dim()] = torch.tensor([indices.shape[1], indices.shape[0], *mine.shape])
        all_numbers = [
            [number for number in each.tolist() if number >= 0]
            for each in gathered([torch.empty_like(numbers) for _ in range(communicator.size)], numbers)
        ]
        for rank, (_, *shape) in enumerate(all_numbers):
            if shape != all_numbers[0][1:]:
                raise _errors.InvalidArgument(
                    f"ranks disagree on a sparse tensor: rank 0 has shape {all_numbers[0][2:]} with {all_numbers[0][1]} sparse "
                    f"dimensions, rank {rank} {shape[1:]} with {shape[0]}"
                )
        counts = [count for count, *_ in all_numbers]
        all_indices = gathered([indices.new_empty(len(indices), count) for count in counts], indices)
        all_values = gathered([values.new_empty(count, *values.shape[1:]) for count in counts], values)

        wide = torch.float32 if values.dtype in _NARROW else values.dtype
        parts = [
            torch.sparse_coo_tensor(place, entries.to(wide), mine.shape, check_invariants=False, is_coalesced=True)
            for place, entries in zip(all_indices, all_values)
        ]
        total = sum(parts[1:], parts[0])
        if op == collectives.ReduceOp.AVG:
            total = total / communicator.size
        tensor.copy_(total.to(values.dtype).coalesce())

"""The backend "torch_gloo": torch's own gloo, for comparing with; "gloo" is ours.

What gloo has not is made of what it has: reduce_scatter is an all_reduce, uneven all_gathers are broadcasts.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ._backends import TorchCommBackend
from ._ranks import rank_and_size
from ._types import CommOptions, ReduceOp


def _store(options: CommOptions, rank: int, size: int) -> Any:
    if options.store is not None:
        return options.store
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    serves = rank == 0 and "TORCHELASTIC_USE_AGENT_STORE" not in os.environ
    return dist.TCPStore(host, port, size, serves, options.timeout, wait_for_workers=False, multi_tenant=True)


def _options(made: Any, root: int | None = None, op: ReduceOp | None = None) -> Any:
    if root is not None:
        made.rootRank = root
    if op is not None:
        if op.type.name in ("AVG", "PREMUL_SUM"):
            raise RuntimeError(f"gloo has no {op.type.name}; the backends gloo and towline have")
        made.reduceOp = getattr(c10d.ReduceOp, op.type.name)
    return made


class TorchGloo(TorchCommBackend):
    def init(self, device: torch.device, name: str, options: CommOptions) -> None:
        if device.type != "cpu":
            raise RuntimeError(f"backend torch_gloo works on the CPU; the device is {device}")
        rank, size = rank_and_size()
        self._form(_store(options, rank, size), name, rank, size, options.timeout)

    def _form(self, store: Any, name: str, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._name, self._rank, self._size = store, name, rank, size
        self._group = dist.ProcessGroupGloo(dist.PrefixStore(f"torch_gloo/{name}", store), rank, size, timeout)

    def get_rank(self) -> int:
        return self._rank

    def get_size(self) -> int:
        return self._size

    def set_timeout(self, timeout: timedelta) -> None:
        self._group._set_default_timeout(timeout)

    def split(self, ranks: list[int], name: str, options: CommOptions) -> TorchGloo | None:
        if not ranks:
            return None
        if self._rank not in ranks:
            raise RuntimeError(f"split: rank {self._rank} is not in its own list {ranks}")
        made = TorchGloo()
        made._form(self._store, f"{self._name}.{name}", ranks.index(self._rank), len(ranks), options.timeout)
        return made

    def finalize(self) -> None:
        self._group = None

    @staticmethod
    def _end(work: Any, async_op: bool) -> Any:
        if async_op:
            return work
        work.wait()
        return None

    # ---- operations

    def send(self, tensor, dst, async_op):
        return self._end(self._group.send([tensor], dst, 0), async_op)

    def recv(self, tensor, src, async_op):
        return self._end(self._group.recv([tensor], src, 0), async_op)

    def broadcast(self, tensor, root, async_op):
        return self._end(self._group.broadcast([tensor], _options(c10d.BroadcastOptions(), root)), async_op)

    def all_reduce(self, tensor, op, async_op):
        return self._end(self._group.allreduce([tensor], _options(c10d.AllreduceOptions(), op=op)), async_op)

    def reduce(self, tensor, root, op, async_op):
        return self._end(self._group.reduce([tensor], _options(c10d.ReduceOptions(), root, op)), async_op)

    def all_gather(self, outputs, input, async_op):
        return self._end(self._group.allgather([list(outputs)], [input]), async_op)

    def all_gather_v(self, outputs, input, async_op):
        outputs[self._rank].copy_(input)
        for root, output in enumerate(outputs):
            self.broadcast(output, root, False)

    def all_gather_single(self, output, input, async_op):
        return self.all_gather(output.view(-1).chunk(self._size), input.view(-1), async_op)

    def reduce_scatter(self, output, inputs, op, async_op):
        whole = torch.cat([one.reshape(-1) for one in inputs])
        self.all_reduce(whole, op, False)
        output.copy_(whole.split([one.numel() for one in inputs])[self._rank].view_as(output))

    reduce_scatter_v = reduce_scatter

    def reduce_scatter_single(self, output, input, op, async_op):
        self.reduce_scatter(output, input.reshape(-1).chunk(self._size), op, False)

    def all_to_all_v_single(self, output, input, output_splits, input_splits, async_op):
        work = self._group.alltoall_base(output, input, list(output_splits), list(input_splits), c10d.AllToAllOptions())
        return self._end(work, async_op)

    def all_to_all_single(self, output, input, async_op):
        return self.all_to_all_v_single(output, input, [], [], async_op)

    def all_to_all(self, outputs, inputs, async_op):
        taken = torch.empty(sum(one.numel() for one in outputs), dtype=inputs[0].dtype)
        given = torch.cat([one.reshape(-1) for one in inputs])
        self.all_to_all_v_single(taken, given, [one.numel() for one in outputs], [one.numel() for one in inputs], False)
        for output, part in zip(outputs, taken.split([one.numel() for one in outputs])):
            output.copy_(part.view_as(output))

    def barrier(self, async_op):
        return self._end(self._group.barrier(c10d.BarrierOptions()), async_op)

    def scatter(self, output, inputs, root, async_op):
        given = [list(inputs)] if root == self._rank else []
        return self._end(self._group.scatter([output], given, _options(c10d.ScatterOptions(), root)), async_op)

    def gather(self, outputs, input, root, async_op):
        taken = [list(outputs)] if root == self._rank else []
        return self._end(self._group.gather(taken, [input], _options(c10d.GatherOptions(), root)), async_op)

    def gather_single(self, output, input, root, async_op):
        parts = output.view(-1).chunk(self._size) if root == self._rank else []
        return self.gather(parts, input.view(-1), root, async_op)

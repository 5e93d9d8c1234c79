"""A communicator as a backend of torch.distributed, which is how torch 2.14 and later uses torchcomms."""

from __future__ import annotations

import functools
import warnings
from datetime import timedelta
from typing import Any

import torch
from towline import InvalidArgument, Unsupported, _torch_gpu, _torch_group

from ._backends import Native
from ._gpu import JointWork
from ._types import ReduceOp, RedOpType


def _needs_copy(given: Any, reduces: bool) -> bool:
    """Whether these are tensors that can't be sent as they lie: the group sends copies, and the communicator's hooks see these alone."""
    if isinstance(given, torch.Tensor):
        if given.layout is not torch.strided or not given.is_contiguous() or given.is_neg():
            return True
        return given.is_complex() and (reduces or given.is_conj())
    return isinstance(given, (list, tuple)) and any(_needs_copy(one, reduces) for one in given)


class _Facade:
    """The operations of towline.collectives.Communicator over a TorchComm, so that its hooks see them.

    It finds the stream of an operation by itself.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm

    @property
    def rank(self) -> int:
        return self.comm.get_rank()

    @property
    def size(self) -> int:
        return self.comm.get_size()

    @property
    def closed(self) -> bool:
        return self.comm._finalized

    def _run(self, operation: str, arguments: tuple, async_op: bool, timeout: float | None, tag: int = 0) -> Any:
        if _needs_copy(arguments, "reduce" in operation):
            raise InvalidArgument(f"{operation}: a tensor is not contiguous, or not of what its memory holds")
        limit = timedelta(seconds=timeout) if timeout is not None else None
        # Messages on GPUs keep their order whatever their tags, as NCCL's.
        tagged = tag != 0 and self.comm.get_device().type == "cpu" and isinstance(self.comm._implementation, Native)
        work = self.comm._run(operation, arguments, async_op, None, limit, tag if tagged else 0)
        return work._native if async_op else None

    def all_reduce(self, tensor, *, op=0, factor=None, async_op=False, timeout=None, stream=None):
        return self._run("all_reduce", (tensor, _reduction(op, factor)), async_op, timeout)

    def reduce(self, tensor, *, root, op=0, factor=None, async_op=False, timeout=None, stream=None):
        return self._run("reduce", (tensor, root, _reduction(op, factor)), async_op, timeout)

    def broadcast(self, tensor, *, root, async_op=False, timeout=None, stream=None):
        return self._run("broadcast", (tensor, root), async_op, timeout)

    def all_gather(self, output, input, *, async_op=False, timeout=None, stream=None):
        listed = isinstance(output, (list, tuple))
        if listed and len({one.numel() for one in output}) > 1:
            return self._run("all_gather_v", (output, input), async_op, timeout)
        return self._run("all_gather" if listed else "all_gather_single", (output, input), async_op, timeout)

    def reduce_scatter(self, output, input, *, op=0, factor=None, async_op=False, timeout=None, stream=None):
        operation = "reduce_scatter" if isinstance(input, (list, tuple)) else "reduce_scatter_single"
        return self._run(operation, (output, input, _reduction(op, factor)), async_op, timeout)

    def gather(self, output, input, *, root, async_op=False, timeout=None, stream=None):
        return self._run("gather", (output or [], input, root), async_op, timeout)

    def scatter(self, output, input, *, root, async_op=False, timeout=None, stream=None):
        return self._run("scatter", (output, input or [], root), async_op, timeout)

    def all_to_all(self, output, input, output_splits=None, input_splits=None, *, async_op=False, timeout=None, stream=None):
        if isinstance(output, (list, tuple)):
            return self._run("all_to_all", (output, input), async_op, timeout)
        if output_splits is None and input_splits is None:
            return self._run("all_to_all_single", (output, input), async_op, timeout)
        return self._run("all_to_all_v_single", (output, input, output_splits, input_splits), async_op, timeout)

    def send(self, tensor, peer, tag=0, *, async_op=False, timeout=None, stream=None):
        return self._run("send", (tensor, peer), async_op, timeout, tag)

    def recv(self, tensor, peer, tag=0, *, async_op=False, timeout=None, stream=None):
        return self._run("recv", (tensor, peer), async_op, timeout, tag)

    def barrier(self, *, async_op=False, timeout=None, stream=None):
        work = self._run("barrier", (), async_op, timeout)
        if self.comm.get_device().type == "cuda":
            _torch_gpu.gpu.synchronize(self.comm._implementation.index)  # a barrier holds up the host
        return work

    def all_reduce_rms_norm(self, *arguments: Any, **how: Any) -> Any:
        """torchcomms has no such operation, and its hooks see those that it has: callers take the steps one by one."""
        raise Unsupported("torchcomms does not fuse all_reduce with RMSNorm")

    @property
    def timeout(self) -> float:
        return self.comm.get_options().timeout.total_seconds()

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self.comm.set_timeout(timedelta(seconds=seconds))

    @property
    def error(self) -> tuple:
        return self.comm._implementation.use().error

    def abort(self, reason: str) -> None:
        self.comm._implementation.abort(reason)

    def close(self) -> None:
        try:
            self.comm.finalize()
        except RuntimeError as error:  # as torchcomms: a group can be destroyed whatever became of it
            warnings.warn(f"torch.distributed: {error}", stacklevel=2)


class _OnlyOne:
    """In the place of a group's communicators on GPUs: the TorchComm is for whatever memory it was made for."""

    def __init__(self, facade: _Facade) -> None:
        self._facade, self.timeout = facade, facade.timeout

    def of_all(self, index: int) -> _Facade:
        return self._facade

    def for_message(self, index: int, peer: int, together: bool) -> tuple[_Facade, int]:
        return self._facade, peer

    def __iter__(self) -> Any:
        return iter(())

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass


_TYPES = {int(getattr(ReduceOp, one.name).native): one for one in RedOpType if one is not RedOpType.PREMUL_SUM}


def _reduction(op: int, factor: float | None) -> ReduceOp:
    return ReduceOp.PREMUL_SUM(factor) if factor is not None else getattr(ReduceOp, _TYPES[int(op)].name)


@functools.cache
def _guard_logger() -> None:
    """torch's logger of DDP takes whatever backend is registered as gloo for its own C++ class, and reads beyond the end of one made
    in Python. While torch uses torchcomms every gloo is one of ours, so the logger is not asked then: it only reports usage."""
    logger = torch.distributed.Logger
    tell = logger.set_construction_data_and_log

    def told(self: Any, *data: Any) -> None:
        if not torch.distributed.config.use_torchcomms:
            tell(self, *data)

    logger.set_construction_data_and_log = told


class _BackendWrapper(_torch_group.PythonBackend):
    def __init__(self, comm: Any) -> None:
        if not _torch_group.TAKES_BACKENDS:
            raise RuntimeError(
                f"torch {torch.__version__} takes no backend made in Python: communicators join its process groups and "
                'device meshes from torch 2.14 on; init_process_group(backend="towline") works with earlier ones'
            )
        _guard_logger()
        facade = _Facade(comm)
        super().__init__(facade, _OnlyOne(facade))
        self._torchcomm, self._batch = comm, None

    supports_coalescing = property(lambda self: True)
    supports_splitting = property(lambda self: False)  # communicators are split: distwrap

    def start_coalescing(self) -> None:
        """From here on sends and receives are kept, for end_coalescing to issue as one batch (without their tags). Collectives begin."""
        if self._batch is not None:
            raise RuntimeError("start_coalescing: a batch is open already")
        super().start_coalescing()
        self._batch, self._tensors, self._dense = self._torchcomm.batch_op_create(), [], []

    def end_coalescing(self) -> Any:
        """Speaks for the messages and the collectives."""
        if self._batch is None:
            raise RuntimeError("end_coalescing without start_coalescing")
        batch, self._batch = self._batch, None
        collectives, self._together = self._together or [], None
        messages = self._issue_batch(batch)
        return _torch_gpu.JointWork([*collectives, messages]) if collectives else messages

    def _issue_batch(self, batch: Any) -> Any:
        copy = (self._tensors, self._dense)
        native = batch.issue(async_op=True)._native if batch.ops else None
        if isinstance(native, JointWork):
            works = [_torch_group._on_stream(one._index, one, self._tensors, None) for one in native._works[:-1]]
            last = native._works[-1]  # after which all of them have come
            return _torch_gpu.JointWork([*works, _torch_group._on_stream(last._index, last, self._tensors, copy)])
        return _torch_group._Work(native, self._tensors, copy)

    def send(self, tensors: list, dst_rank: int, tag: int = 0) -> Any:
        if self._batch is None:
            return super().send(tensors, dst_rank, tag)
        (tensor,) = tensors
        self._batch.send(_torch_group._dense(tensor), dst_rank)
        return _torch_group._Work(None, tensors)  # the batch's speaks for it

    def recv(self, tensors: list, src_rank: int, tag: int = 0) -> Any:
        if self._batch is None:
            return super().recv(tensors, src_rank, tag)
        (tensor,) = tensors
        self._tensors.append(tensor)
        self._dense.append(_torch_group._dense(tensor))
        self._batch.recv(self._dense[-1], src_rank)
        return _torch_group._Work(None, tensors)

    def get_comm(self) -> Any:
        return self._torchcomm

    def get_mem_allocator(self) -> Any:
        return self._torchcomm.get_mem_allocator()

    def getBackendName(self) -> str:
        return self._torchcomm.get_backend()



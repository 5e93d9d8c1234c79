"""Process groups of torch.distributed on communicators.

New torch takes a Backend made in Python, older ones a ProcessGroup; both are made of the same operations here, and neither
of anything compiled against torch. torch itself may import this while it imports torch.distributed (through torchcomms), so
only what is in torch._C is used.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
from torch._C import _DistStoreError
from torch._C import _distributed_c10d as c10d

from . import _errors, collectives

NAME = "towline"
_REDUCTIONS = {
    getattr(c10d.ReduceOp, name): getattr(collectives.ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
}
_NO_TIMEOUT = timedelta(0)
_BARRIER_TAG = 1 << 62  # of the messages of a monitored barrier


class Store:
    """torch's store as a communicator asks it."""

    def __init__(self, store: c10d.Store) -> None:
        self.store = store

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        try:
            self.store.wait([key], timedelta(seconds=min(timeout, 1e6)))
        except _DistStoreError as error:
            raise TimeoutError(str(error)) from error
        return self.store.get(key)


class _Work(c10d.Work):
    """An operation that goes on by itself. `outputs` are what its future yields."""

    def __init__(self, work: collectives.Work | None, outputs: list[Any]) -> None:
        super().__init__()
        self._work, self._outputs, self._future = work, outputs, None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        if self._work is not None:
            self._work.wait(timeout.total_seconds() if timeout > _NO_TIMEOUT else None)
        return True

    def is_completed(self) -> bool:
        return self._work is None or self._work.done

    def is_success(self) -> bool:
        return self._work is None or self._work.poll() == _errors.Status.OK

    def exception(self) -> Exception | None:
        if self._work is None or self._work.poll() >= 0:
            return None
        return _errors._make(self._work.poll(), self._work.error)

    def result(self) -> list[Any]:
        return self._outputs

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            self._future = torch.futures.Future()
            if self._work is None:
                self._future.set_result(self._outputs)
            else:
                self._work.on_end(self._end)
        return self._future

    def _end(self) -> None:
        error = self.exception()
        if error is None:
            self._future.set_result(self._outputs)
        else:
            self._future.set_exception(error)


def _seconds(options: Any) -> float | None:
    timeout = options.timeout
    return timeout.total_seconds() if timeout > _NO_TIMEOUT else None


def _reduction(options: Any) -> tuple[int, float | None]:
    """The reduction of an operation, and its factor where it has one."""
    op = options.reduceOp
    reduction = _REDUCTIONS.get(op.op if isinstance(op, c10d.ReduceOp) else op)
    if reduction is None:
        raise _errors.Unsupported(f"there is no reduction {op}")
    if reduction != collectives.ReduceOp.PREMUL_SUM:
        return reduction, None
    if not hasattr(op, "factor"):
        raise _errors.Unsupported("this version of torch does not say the factor of PREMUL_SUM")
    return reduction, float(op.factor)


def _dense(tensor: Any) -> Any:
    """What travels instead of a tensor with holes or of complex numbers: perhaps a copy."""
    if isinstance(tensor, (list, tuple)):
        return [_dense(one) for one in tensor]
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.layout is not torch.strided:
        raise _errors.Unsupported(f"a tensor of layout {tensor.layout} can't be sent; make it dense first")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).contiguous()


def _copy_back(outputs: Any, dense: Any) -> None:
    if isinstance(outputs, (list, tuple)):
        for output, one in zip(outputs, dense):
            _copy_back(output, one)
    elif isinstance(outputs, torch.Tensor):
        view = torch.view_as_real(outputs) if outputs.is_complex() else outputs
        if view.data_ptr() != dense.data_ptr():
            view.copy_(dense)


def _flat(outputs: Any) -> list[Any]:
    return outputs if isinstance(outputs, list) else [outputs]


class Operations:
    """What torch calls a group for, done by a communicator: `self._comm`."""

    _comm: collectives.Communicator
    _sequence = 0

    # ---- one way for all

    def _do(self, operation: Any, output: Any, inputs: tuple, options: Any, outputs: list[Any], **how: Any) -> Any:
        """Calls operation(output, *inputs): for its end where torch waits anyhow, else as a Work.

        An operation of one tensor, which it changes, has no inputs.
        """
        timeout = _seconds(options)
        async_op = getattr(options, "asyncOp", True)
        try:
            work = operation(output, *inputs, async_op=async_op, timeout=timeout, **how)
        except (_errors.InvalidArgument, _errors.Unsupported):
            # Nothing has happened yet. What can't travel as it is, does as a copy.
            dense, dense_inputs = _dense(output), _dense(inputs)
            if _same(dense, output) and _same(dense_inputs, inputs):
                raise
            operation(dense, *dense_inputs, timeout=timeout, **how)
            with torch.no_grad():
                _copy_back(output, dense)
            work = None
        self._sequence += 1
        if not async_op:
            return self._done(outputs)
        return _Work(work, outputs)

    def _done(self, outputs: list[Any]) -> Any:
        return None

    # ---- reductions

    def allreduce(self, tensors: list, opts: Any = c10d.AllreduceOptions()) -> Any:
        op, factor = _reduction(opts)
        work = None
        for tensor in tensors:
            work = self._do(self._comm.all_reduce, tensor, (), opts, tensors, op=op, factor=factor)
        return work

    def allreduce_coalesced(self, tensors: list, opts: Any = c10d.AllreduceCoalescedOptions()) -> Any:
        # They run in order, and one that fails fails all behind it: the last one speaks for all.
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list, opts: Any) -> Any:
        op, factor = _reduction(opts)
        root = opts.rootRank
        (tensor,) = tensors
        return self._do(self._comm.reduce, tensor, (), opts, tensors, root=root, op=op, factor=factor)

    def reduce_scatter(self, output_tensors: list, input_tensors: list, opts: Any = c10d.ReduceScatterOptions()) -> Any:
        op, factor = _reduction(opts)
        (output,), (inputs,) = output_tensors, input_tensors
        return self._do(self._comm.reduce_scatter, output, (inputs,), opts, output_tensors, op=op, factor=factor)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = c10d.ReduceScatterOptions()) -> Any:
        op, factor = _reduction(opts)
        return self._do(self._comm.reduce_scatter, output, (input,), opts, [output], op=op, factor=factor)

    def reduce_scatter_single_coalesced(self, outputs: list, inputs: list, opts: Any = c10d.ReduceScatterOptions()) -> Any:
        work = None
        op, factor = _reduction(opts)
        for output, one in zip(outputs, inputs):
            work = self._do(self._comm.reduce_scatter, output, (one,), opts, outputs, op=op, factor=factor)
        return work

    # ---- moves

    def broadcast(self, tensors: list, opts: Any = c10d.BroadcastOptions()) -> Any:
        (tensor,) = tensors
        return self._do(self._comm.broadcast, tensor, (), opts, tensors, root=opts.rootRank)

    def allgather(self, output_tensors: list, input_tensors: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        (outputs,), (one,) = output_tensors, input_tensors
        if len({output.data_ptr() for output in outputs}) == len(outputs):
            return self._do(self._comm.all_gather, outputs, (one,), opts, outputs)
        # Some are one and the same: the last rank's part stays there, on every rank.
        parts = [torch.empty_like(output, memory_format=torch.contiguous_format) for output in outputs]
        self._comm.all_gather(_dense(parts), _dense(one), timeout=_seconds(opts))
        self._sequence += 1
        with torch.no_grad():
            for output, part in zip(outputs, parts):
                output.copy_(part)
        return _Work(None, outputs) if getattr(opts, "asyncOp", True) else self._done(outputs)

    def all_gather_single(self, output: Any, input: Any, opts: Any = c10d.AllgatherOptions()) -> Any:
        return self._do(self._comm.all_gather, output, (input,), opts, [output])

    def all_gather_single_coalesced(self, outputs: list, inputs: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        work = None
        for output, one in zip(outputs, inputs):
            work = self._do(self._comm.all_gather, output, (one,), opts, outputs)
        return work

    def allgather_coalesced(self, output_lists: list, inputs: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        work = None
        # One list for each rank, with one tensor for each input.
        for position, one in enumerate(inputs):
            parts = [output[position] for output in output_lists]
            work = self._do(self._comm.all_gather, parts, (one,), opts, output_lists)
        return work

    def gather(self, output_tensors: list, input_tensors: list, opts: Any = c10d.GatherOptions()) -> Any:
        outputs = output_tensors[0] if opts.rootRank == self._comm.rank else None
        (one,) = input_tensors
        return self._do(self._comm.gather, outputs, (one,), opts, _flat(outputs or []), root=opts.rootRank)

    def scatter(self, output_tensors: list, input_tensors: list, opts: Any = c10d.ScatterOptions()) -> Any:
        inputs = input_tensors[0] if opts.rootRank == self._comm.rank else None
        (output,) = output_tensors
        return self._do(self._comm.scatter, output, (inputs,), opts, output_tensors, root=opts.rootRank)

    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: list, input_split_sizes: list, opts: Any = c10d.AllToAllOptions()
    ) -> Any:
        splits = (output_split_sizes or None, input_split_sizes or None)
        return self._do(self._comm.all_to_all, output, (input, *splits), opts, [output])

    def alltoall(self, output_tensors: list, input_tensors: list, opts: Any = c10d.AllToAllOptions()) -> Any:
        return self._do(self._comm.all_to_all, output_tensors, (input_tensors,), opts, output_tensors)

    # ---- messages

    def send(self, tensors: list, dst_rank: int, tag: int = 0) -> Any:
        (tensor,) = tensors
        return _Work(self._comm.send(_dense(tensor), dst_rank, tag, async_op=True), tensors)

    def recv(self, tensors: list, src_rank: int, tag: int = 0) -> Any:
        (tensor,) = tensors
        return _Work(self._comm.recv(tensor, src_rank, tag, async_op=True), tensors)

    def recv_anysource(self, tensors: list, tag: int = 0) -> Any:
        raise _errors.Unsupported("recv from any rank: name the source")

    # ---- the rest

    def barrier(self, opts: Any = c10d.BarrierOptions()) -> Any:
        async_op = getattr(opts, "asyncOp", True)
        work = self._comm.barrier(async_op=async_op, timeout=_seconds(opts))
        return _Work(work, []) if async_op else self._done([])

    def monitored_barrier(self, opts: Any = c10d.BarrierOptions(), wait_all_ranks: bool = False) -> None:
        """Rank 0 hears from every rank and answers: it can say which did not come. A failure breaks the group."""
        limit = _seconds(opts) or self._comm.timeout
        deadline = time.monotonic() + limit
        token = torch.zeros(1, dtype=torch.uint8)
        # The messages themselves are given longer: what is late here is told here.
        how = {"tag": _BARRIER_TAG, "async_op": True, "timeout": 2 * limit + 60}
        others = range(1, self._comm.size) if self._comm.rank == 0 else [0]
        if self._comm.rank != 0:
            self._comm.send(token, 0, **how)
        arriving = {rank: self._comm.recv(torch.zeros_like(token), rank, **how) for rank in others}
        absent = []
        for rank, work in arriving.items():
            try:
                work.wait(max(deadline - time.monotonic(), 0))
            except _errors.TimedOut:
                if self._comm.error[0] != _errors.Status.OK:
                    raise
                absent.append(rank)
                if not wait_all_ranks:
                    break
        if absent:
            who = f"Rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
            text = f"[Rank {self._comm.rank}]: {who} failed to pass monitoredBarrier in {limit * 1000:.0f} ms"
            self._comm.abort(text)
            raise RuntimeError(text)
        if self._comm.rank == 0:
            for work in [self._comm.send(token, rank, **how) for rank in others]:
                work.wait()

    def set_timeout(self, timeout: timedelta) -> None:
        self._comm.timeout = timeout.total_seconds()

    def abort(self) -> None:
        if not self._comm.closed:
            self._comm.abort("the process group was aborted")

    def shutdown(self) -> None:
        self._comm.close()

    def getBackendName(self) -> str:
        return NAME

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    @property
    def communicator(self) -> collectives.Communicator:
        """What the group runs on."""
        return self._comm

    # As torch called them before 2.15.
    alltoall_base = all_to_all_single
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return all(map(_same, one, other))
    if isinstance(one, torch.Tensor):
        return one.data_ptr() == other.data_ptr() and one.dtype == other.dtype and one.stride() == other.stride()
    return True


class PythonBackend(Operations, c10d.Backend):
    """For torch whose Backend can be one of Python."""

    def __init__(self, communicator: Any) -> None:
        c10d.Backend.__init__(self, communicator.rank, communicator.size)
        self._comm = communicator

    # All have to be here: torch asks those that it inherits without end.
    supports_coalescing = property(lambda self: False)
    supports_reconfigure = property(lambda self: False)
    supports_shrinking = property(lambda self: False)
    supports_splitting = property(lambda self: False)
    supports_window = property(lambda self: False)
    _supports_time_estimate = property(lambda self: False)


class _ProcessGroup(Operations, c10d.ProcessGroup):
    """For torch before: its ProcessGroup can be one of Python, and is then the whole group."""

    def __init__(self, communicator: collectives.Communicator) -> None:
        c10d.ProcessGroup.__init__(self, communicator.rank, communicator.size)
        self._comm = communicator
        self._name = communicator.name

    def _done(self, outputs: list[Any]) -> Any:
        return _Work(None, outputs)

    def _get_backend(self, device: torch.device) -> _ProcessGroup:
        return self

    supports_coalescing = property(lambda self: False)

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name


def _takes_backends() -> bool:
    try:
        c10d.Backend(0, 1)
    except TypeError:
        return False
    return True


TAKES_BACKENDS = _takes_backends()


def create(options: Any, backend_options: Any = None) -> Operations:
    communicator = collectives.Communicator(
        rank=options.group_rank,
        size=options.group_size,
        name=str(options.group_id or "world"),
        store=Store(options.store),
        timeout=options.timeout.total_seconds(),
    )
    return (PythonBackend if TAKES_BACKENDS else _ProcessGroup)(communicator)

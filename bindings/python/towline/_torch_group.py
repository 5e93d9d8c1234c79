"""Process groups of torch.distributed on communicators.

New torch takes a Backend made in Python, older ones a ProcessGroup; both are made of the same operations here, and neither
of anything compiled against torch. torch itself may import this while it imports torch.distributed (through torchcomms), so
only what is in torch._C is used.
"""

from __future__ import annotations

import threading
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
_ANSWER_SECONDS = 10.0  # how much later than its time limit rank 0 may answer the others in one


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


class _Question(threading.local):
    """Which of our Works is behind one of torch's holders: asked through the one method that a holder hands on."""

    asking = False
    answer: _Work | None = None


_question = _Question()


class _Work(c10d.Work):
    """An operation that goes on by itself. `outputs` are what its future yields.

    `copy` is (outputs, dense): outputs that could not travel as they are, and what did, which is copied back at the end.
    """

    def __init__(self, work: collectives.Work | None, outputs: list[Any], copy: tuple[Any, Any] | None = None) -> None:
        super().__init__()
        self._work, self._outputs, self._copy = work, outputs, copy
        self._future: torch.futures.Future | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        if self._work is not None:
            self._work.wait(timeout.total_seconds() if timeout > _NO_TIMEOUT else None)
            self._finish()
        return True

    def _finish(self) -> None:
        """Once the operation is done: what was received as a copy goes to its place."""
        with self._lock:
            copy, self._copy = self._copy, None
            if copy is not None:
                with torch.no_grad():
                    _copy_back(*copy)

    def is_completed(self) -> bool:
        if self._work is None:
            return True
        if self._work.poll() == _errors.Status.OK:
            self._finish()
        return self._work.done

    def is_success(self) -> bool:
        return self._work is None or self._work.poll() == _errors.Status.OK

    def exception(self) -> Exception | None:
        if self._work is None or self._work.poll() >= 0:
            return None
        return _errors._make(self._work.poll(), self._work.error)

    def result(self) -> list[Any]:
        return self._outputs

    def source_rank(self) -> int:
        """Of a receive that has ended: the rank that it is from."""
        source = self._work.source if self._work is not None else None
        if source is None:
            raise _errors.InvalidArgument("a source rank is of receives that have ended")
        return source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        if _question.asking:
            _question.answer = self
            return torch.futures.Future()
        with self._lock:
            if self._future is not None:
                return self._future
            ended: torch.futures.Future = torch.futures.Future()
            # An exception in a callback must reach torch's C++ as an exception, too. With set_exception,
            # torch's C++ would take the stored exception for the value and read tensors out of it.
            self._future = ended.then(self._value)
        if self._work is None:
            ended.set_result(None)
        else:
            self._work.on_end(lambda: ended.set_result(None))
        return self._future

    def _value(self, _: Any) -> list[Any]:
        error = self.exception()
        if error is not None:
            raise error
        self._finish()
        return self._outputs


def _ask_the_work_behind(name: str) -> None:
    """Lets torch's Work answer by ours where it holds one.

    torch wraps what a Backend made in Python returns, and the wrapper hands on only wait() and get_future(): it would say
    that no operation ever completes, which a program may wait for.
    """
    original = getattr(c10d.Work, name)

    def answer(work: c10d.Work) -> Any:
        _question.asking, _question.answer = True, None
        try:
            work.get_future()
        except RuntimeError:  # Works of other backends may have none
            pass
        finally:
            _question.asking = False
        behind, _question.answer = _question.answer, None
        return original(work) if behind is None else getattr(behind, name)()

    answer.__name__ = name
    setattr(c10d.Work, name, answer)


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


def _last_of(works: Any) -> Any:
    """Operations that run in order, of which one that fails fails all behind it: the last one speaks for all."""
    made = list(works)
    copies = [work._copy for work in made if work is not None and work._copy is not None]
    if copies:
        made[-1]._copy = tuple(map(list, zip(*copies)))
    return made[-1] if made else None


def _flat(outputs: Any) -> list[Any]:
    return outputs if isinstance(outputs, list) else [outputs]


class Operations:
    """What torch calls a group for, done by a communicator: `self._comm`."""

    _comm: collectives.Communicator
    _sequence = 0

    # ---- the common path

    def _do(self, operation: Any, output: Any, inputs: tuple, options: Any, outputs: list[Any], **how: Any) -> Any:
        """Calls operation(output, *inputs): for its end where torch waits anyhow, else as a Work.

        An operation of one tensor, which it changes, has no inputs.
        """
        timeout = _seconds(options)
        async_op = getattr(options, "asyncOp", True)
        copy = None
        try:
            work = operation(output, *inputs, async_op=async_op, timeout=timeout, **how)
        except (_errors.InvalidArgument, _errors.Unsupported):
            # Nothing has been sent yet. Tensors that can't be sent directly are copied.
            dense, dense_inputs = _dense(output), _dense(inputs)
            if _same(dense, output) and _same(dense_inputs, inputs):
                raise
            copy = (output, dense)
            work = operation(dense, *dense_inputs, async_op=async_op, timeout=timeout, **how)
        self._sequence += 1
        if async_op:
            return _Work(work, outputs, copy)
        if copy is not None:
            with torch.no_grad():
                _copy_back(*copy)
        return self._done(outputs)

    def _done(self, outputs: list[Any]) -> Any:
        return None

    # ---- reductions

    def allreduce(self, tensors: list, opts: Any = c10d.AllreduceOptions()) -> Any:
        op, factor = _reduction(opts)
        return _last_of(self._do(self._comm.all_reduce, tensor, (), opts, tensors, op=op, factor=factor) for tensor in tensors)

    def allreduce_coalesced(self, tensors: list, opts: Any = c10d.AllreduceCoalescedOptions()) -> Any:
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
        op, factor = _reduction(opts)
        return _last_of(
            self._do(self._comm.reduce_scatter, output, (one,), opts, outputs, op=op, factor=factor)
            for output, one in zip(outputs, inputs)
        )

    # ---- moves

    def broadcast(self, tensors: list, opts: Any = c10d.BroadcastOptions()) -> Any:
        (tensor,) = tensors
        return self._do(self._comm.broadcast, tensor, (), opts, tensors, root=opts.rootRank)

    def allgather(self, output_tensors: list, input_tensors: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        (outputs,), (one,) = output_tensors, input_tensors
        if len({output.data_ptr() for output in outputs}) == len(outputs):
            return self._do(self._comm.all_gather, outputs, (one,), opts, outputs)
        # Some tensors are the same object: the last rank's part stays in it, on every rank.
        parts = [torch.empty_like(output, memory_format=torch.contiguous_format) for output in outputs]
        async_op = getattr(opts, "asyncOp", True)
        work = self._comm.all_gather(_dense(parts), _dense(one), async_op=async_op, timeout=_seconds(opts))
        self._sequence += 1
        made = _Work(work, outputs, (outputs, _dense(parts)))
        if async_op:
            return made
        made._finish()
        return self._done(outputs)

    def all_gather_single(self, output: Any, input: Any, opts: Any = c10d.AllgatherOptions()) -> Any:
        return self._do(self._comm.all_gather, output, (input,), opts, [output])

    def all_gather_single_coalesced(self, outputs: list, inputs: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        return _last_of(
            self._do(self._comm.all_gather, output, (one,), opts, outputs) for output, one in zip(outputs, inputs)
        )

    def allgather_coalesced(self, output_lists: list, inputs: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        # One list for each rank, with one tensor for each input.
        return _last_of(
            self._do(self._comm.all_gather, [output[position] for output in output_lists], (one,), opts, output_lists)
            for position, one in enumerate(inputs)
        )

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
        dense = _dense(tensor)
        return _Work(self._comm.recv(dense, src_rank, tag, async_op=True), tensors, (tensor, dense))

    def recv_anysource(self, tensors: list, tag: int = 0) -> Any:
        (tensor,) = tensors
        dense = _dense(tensor)
        return _Work(self._comm.recv(dense, None, tag, async_op=True), tensors, (tensor, dense))

    # ---- the rest

    def barrier(self, opts: Any = c10d.BarrierOptions()) -> Any:
        async_op = getattr(opts, "asyncOp", True)
        work = self._comm.barrier(async_op=async_op, timeout=_seconds(opts))
        return _Work(work, []) if async_op else self._done([])

    def monitored_barrier(self, opts: Any = c10d.BarrierOptions(), wait_all_ranks: bool = False) -> None:
        """Rank 0 hears from every rank and answers: it can say which did not come. A failure breaks the group.

        Rank 0 also tells everyone that it has come. So a rank that waits for the answer knows whether rank 0 is missing,
        or waits for others and will say for whom.
        """
        limit = _seconds(opts) or self._comm.timeout
        # The messages themselves have a longer limit: rank 0 reports late ranks here.
        how = {"tag": _BARRIER_TAG, "async_op": True, "timeout": 3 * limit + 60}
        (self._collect_others if self._comm.rank == 0 else self._report_to_first)(limit, how, wait_all_ranks)

    def _collect_others(self, limit: float, how: dict[str, Any], wait_all_ranks: bool) -> None:
        deadline = time.monotonic() + limit
        others = range(1, self._comm.size)
        token = torch.zeros(1, dtype=torch.uint8)
        arriving = {rank: self._comm.recv(torch.zeros_like(token), rank, **how) for rank in others}
        for rank in others:
            self._comm.send(token, rank, **how)
        absent = []
        for rank, work in arriving.items():
            if not self._has_come(work, max(deadline - time.monotonic(), 0)):
                absent.append(rank)
                if not wait_all_ranks:
                    break
        if absent:
            who = f"Ranks {', '.join(map(str, absent))}" if wait_all_ranks else f"Rank {absent[0]}"
            self._fail_barrier(f"[Rank 0]: {who} failed to pass monitoredBarrier in {limit * 1000:.0f} ms")
        for work in [self._comm.send(token, rank, **how) for rank in others]:
            work.wait()

    def _report_to_first(self, limit: float, how: dict[str, Any], wait_all_ranks: bool) -> None:
        rank, token = self._comm.rank, torch.zeros(1, dtype=torch.uint8)
        self._comm.send(token, 0, **how)
        has_come, answer = (self._comm.recv(torch.zeros_like(token), 0, **how) for _ in range(2))
        if not self._has_come(has_come, limit):
            self._fail_barrier(f"[Rank {rank}]: Rank 0 failed to pass monitoredBarrier in {limit * 1000:.0f} ms")
        # Rank 0 names the missing ranks within its own time limit.
        if not self._has_come(answer, limit + _ANSWER_SECONDS):
            self._fail_barrier(f"[Rank {rank}]: Rank 0 came to the monitoredBarrier and did not answer in {limit * 1000:.0f} ms")

    def _has_come(self, work: collectives.Work, seconds: float) -> bool:
        try:
            work.wait(seconds)
        except _errors.TimedOut:
            if self._comm.error[0] != _errors.Status.OK:
                raise
            return False
        return True

    def _fail_barrier(self, text: str) -> None:
        self._comm.abort(text)
        raise RuntimeError(text)

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


_kept: set[PythonBackend] = set()


class PythonBackend(Operations, c10d.Backend):
    """For torch whose Backend can be one of Python."""

    def __init__(self, communicator: Any, group: Any = None) -> None:
        c10d.Backend.__init__(self, communicator.rank, communicator.size)
        self._comm = communicator
        self._group = group  # until it is made
        if c10d.get_debug_level() == c10d.DebugLevel.DETAIL:
            # torch wraps the backend then, and keeps its C++ part alone.
            _kept.add(self)

    def shutdown(self) -> None:
        super().shutdown()
        _kept.discard(self)

    def _set_group_uid(self, uid: str) -> None:
        """What torch calls when it has made a group, and registered it for its devices."""
        super()._set_group_uid(uid)
        group, self._group = self._group, None
        others = [
            device.type
            for device in (group._device_types if group is not None else ())
            if device.type != "cpu" and group._get_backend(device).name() == self.getBackendName()
        ]
        if others:
            self.shutdown()
            raise _errors.Unsupported(
                f"backend {self.getBackendName()} works on the CPU, and is asked for on {', '.join(others)}: "
                f'name another for that, such as "cpu:{self.getBackendName()},{others[0]}:nccl"'
            )

    # All of these must be defined: the inherited ones recurse without end.
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
if TAKES_BACKENDS:
    for _name in ("is_completed", "is_success", "exception", "source_rank", "_source_rank", "result"):
        _ask_the_work_behind(_name)


def create(options: Any, backend_options: Any = None) -> Operations:
    communicator = collectives.Communicator(
        rank=options.group_rank,
        size=options.group_size,
        name=str(options.group_id or "world"),
        store=Store(options.store),
        timeout=options.timeout.total_seconds(),
    )
    return PythonBackend(communicator, options.process_group) if TAKES_BACKENDS else _ProcessGroup(communicator)

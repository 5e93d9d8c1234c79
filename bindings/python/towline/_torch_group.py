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

from . import _errors, _torch_gpu, _torch_sparse, collectives
from ._torch_gpu import Communicators, JointWork, StreamWork
from ._torch_works import AskedWork, ask_the_work_behind

NAME = "towline"
# By torch's numbers. Numbers on both sides, since members of an enumeration take longer to look up than an operation to issue.
_REDUCTIONS = {
    int(getattr(c10d.ReduceOp, name)): int(getattr(collectives.ReduceOp, name))
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
}
_SUM, _PREMUL_SUM = c10d.ReduceOp.SUM, int(collectives.ReduceOp.PREMUL_SUM)
_OF_COMPLEX = (collectives.ReduceOp.SUM, collectives.ReduceOp.AVG, collectives.ReduceOp.PREMUL_SUM)  # which take the two parts alone
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
        try:  # torch counts in whole milliseconds, and 0 is no limit
            self.store.wait([key], timedelta(seconds=min(max(timeout, 1e-3), 1e6)))
        except RuntimeError as error:
            if not isinstance(error, _DistStoreError) and "timeout" not in str(error).lower():  # a FileStore's is plain
                raise
            raise TimeoutError(str(error)) from error
        return self.store.get(key)


class _Work(AskedWork):
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
                with torch.inference_mode():
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
        """The sender's rank, once a receive has ended."""
        source = self._work.source if self._work is not None else None
        if source is None:
            raise _errors.InvalidArgument("a source rank is of receives that have ended")
        return source

    _source_rank = source_rank

    def _make_future(self) -> torch.futures.Future:
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


def _seconds(options: Any) -> float | None:
    timeout = options.timeout
    return timeout.total_seconds() if timeout > _NO_TIMEOUT else None


def _reduction(options: Any) -> tuple[int, float | None]:
    """The reduction of an operation, and its factor where it has one."""
    op = options.reduceOp
    if op == _SUM:
        return 0, None
    reduction = _REDUCTIONS.get(int(getattr(op, "op", op)))
    if reduction is None:
        raise _errors.Unsupported(f"there is no reduction {op}")
    if reduction != _PREMUL_SUM:
        return reduction, None
    _, factor = op.__getstate__()  # torch 2.7 to 2.11 has no op.factor; it may be a tensor of one number
    return reduction, float(factor)


def _dense(tensor: Any, op: int | None = None) -> Any:
    """The tensor that travels instead of one with holes: perhaps a copy. `op`: the reduction, which takes complex numbers as pairs.

    Others take them as they are: on another rank the tensor may have no holes.
    """
    if isinstance(tensor, (list, tuple)):
        return [_dense(one, op) for one in tensor]
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.layout is not torch.strided:
        raise _errors.Unsupported(f"a tensor of layout {tensor.layout} can't be sent; make it dense first")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if op is not None and tensor.is_complex():
        if op not in _OF_COMPLEX:
            raise _errors.Unsupported(f"complex numbers can't be reduced by {collectives.ReduceOp(op).name.lower()}")
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous()


def _copy_back(outputs: Any, dense: Any) -> None:
    """In inference mode, wherever the operation was issued: outside of it, tensors that were made in it can't be written."""
    if isinstance(outputs, (list, tuple)):
        for output, one in zip(outputs, dense):
            _copy_back(output, one)
    elif isinstance(outputs, torch.Tensor):
        came = torch.view_as_complex(dense) if outputs.is_complex() and not dense.is_complex() else dense
        if outputs.data_ptr() != came.data_ptr():
            outputs.copy_(came)


def _written(outputs: Any, dense: Any, same_where_shared: bool) -> tuple[Any, Any]:
    """The pair that _copy_back() takes: outputs, and the tensors sent for them. Elements that share memory are copied once."""
    if isinstance(outputs, (list, tuple)):
        pairs = [_written(output, one, same_where_shared) for output, one in zip(outputs, dense)]
        return [output for output, _ in pairs], [one for _, one in pairs]
    if not isinstance(outputs, torch.Tensor):
        return outputs, dense
    shared = [dim for dim in range(outputs.dim()) if outputs.stride(dim) == 0 and outputs.size(dim) > 1]
    if shared and not same_where_shared:
        raise _errors.InvalidArgument("can't write into an expanded tensor, whose elements share memory; clone it first")
    for dim in shared:
        outputs, dense = outputs.narrow(dim, 0, 1), dense.narrow(dim, 0, 1)
    return outputs, dense


def _last_of(works: Any) -> Any:
    """Operations that run in order, of which one that fails fails all behind it: the last one speaks for all."""
    made = list(works)
    if any(isinstance(work, StreamWork) for work in made):
        return made[0] if len(made) == 1 else JointWork(made)
    copies = [work._copy for work in made if work is not None and work._copy is not None]
    if copies:
        made[-1]._copy = tuple(map(list, zip(*copies)))
    return made[-1] if made else None


def _first_tensor(*given: Any) -> torch.Tensor | None:
    for one in given:
        if isinstance(one, torch.Tensor):
            return one
        if isinstance(one, (list, tuple)) and (found := _first_tensor(*one)) is not None:
            return found
    return None


def _flat(outputs: Any) -> list[Any]:
    return outputs if isinstance(outputs, list) else [outputs]


class Operations:
    """The methods that torch calls on a group, done by communicators: `self._comm` for host memory, `self._gpus` for GPUs'."""

    _comm: collectives.Communicator
    _gpus: Communicators
    _sequence = 0
    _together: list[Any] | None = None  # works between start_coalescing and end_coalescing

    # ---- the common path

    def _do(
        self, name: str, output: Any, inputs: tuple, options: Any, outputs: list[Any], into: Any = None, **how: Any
    ) -> Any:
        """Calls the operation(output, *inputs): for its end where torch waits anyhow, else as a Work.

        An operation of one tensor, which it changes, has no inputs. `into`: where the output is copied at the end.
        """
        first = output if isinstance(output, torch.Tensor) else _first_tensor(output, inputs)
        gpu = _torch_gpu.gpu
        on_gpu = first is not None and gpu.holds(first)
        index = gpu.index(first) if on_gpu else 0
        communicator = self._gpus.of_all(index) if on_gpu else self._comm
        async_op = how["async_op"] = getattr(options, "asyncOp", True)
        how["timeout"] = _seconds(options)
        if on_gpu:
            how["stream"] = gpu.stream(index)
        copy = None if into is None else self._to_copy_back(name, how, into, output)
        operation = getattr(communicator, name)
        try:
            work = operation(output, *inputs, **how)
        except (_errors.InvalidArgument, _errors.Unsupported):
            # Nothing has been sent yet. Tensors that can't be sent directly are copied.
            op = how.get("op")
            if op is not None and name == "all_reduce" and output.layout is torch.sparse_coo and not on_gpu:
                return self._reduce_sparse(output, op, outputs, how)
            dense, dense_inputs = _dense(output, op), _dense(inputs, op)
            if _same(dense, output) and _same(dense_inputs, inputs):
                raise
            copy = self._to_copy_back(name, how, output if into is None else into, dense)
            work = operation(dense, *dense_inputs, **how)
        self._sequence += 1
        if async_op:
            return self._issued(_on_stream(index, work, outputs, copy) if on_gpu else _Work(work, outputs, copy))
        if on_gpu:
            gpu.settle(index)
        if copy is not None:
            with torch.inference_mode():
                _copy_back(*copy)
        return self._done(outputs)

    def _to_copy_back(self, name: str, how: dict[str, Any], outputs: Any, dense: Any) -> tuple[Any, Any]:
        # The elements of an expanded tensor get one value: reduced from equal ones, or what the root gives and keeps.
        same_where_shared = name in ("all_reduce", "reduce") or (name == "broadcast" and how["root"] == self._comm.rank)
        return _written(outputs, dense, same_where_shared)

    def _reduce_sparse(self, tensor: torch.Tensor, op: int, outputs: list[Any], how: dict[str, Any]) -> Any:
        if how["factor"] is not None:
            raise _errors.Unsupported("sparse tensors can't be reduced with a factor; make them dense first")
        _torch_sparse.all_reduce(self._comm, tensor, op, how["timeout"])
        self._sequence += 1
        return self._issued(_Work(None, outputs)) if how["async_op"] else self._done(outputs)

    def _issued(self, work: Any) -> Any:
        if self._together is not None:
            self._together.append(work)
        return work

    def start_coalescing(self) -> None:
        self._together = []

    def end_coalescing(self) -> Any:
        works, self._together = self._together or [], None
        return JointWork(works)

    def _start_coalescing(self, device: Any = None) -> None:
        self.start_coalescing()

    def _end_coalescing(self, device: Any = None) -> Any:
        return self.end_coalescing()

    def _done(self, outputs: list[Any]) -> Any:
        return None

    # ---- reductions

    def allreduce(self, tensors: list, opts: Any = c10d.AllreduceOptions()) -> Any:
        op, factor = _reduction(opts)
        if len(tensors) == 1:
            return self._do("all_reduce", tensors[0], (), opts, tensors, op=op, factor=factor)
        return _last_of(self._do("all_reduce", tensor, (), opts, tensors, op=op, factor=factor) for tensor in tensors)

    def allreduce_coalesced(self, tensors: list, opts: Any = c10d.AllreduceCoalescedOptions()) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list, opts: Any) -> Any:
        op, factor = _reduction(opts)
        root = opts.rootRank
        (tensor,) = tensors
        return self._do("reduce", tensor, (), opts, tensors, root=root, op=op, factor=factor)

    def reduce_scatter(self, output_tensors: list, input_tensors: list, opts: Any = c10d.ReduceScatterOptions()) -> Any:
        op, factor = _reduction(opts)
        (output,), (inputs,) = output_tensors, input_tensors
        return self._do("reduce_scatter", output, (inputs,), opts, output_tensors, op=op, factor=factor)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = c10d.ReduceScatterOptions()) -> Any:
        op, factor = _reduction(opts)
        return self._do("reduce_scatter", output, (input,), opts, [output], op=op, factor=factor)

    def reduce_scatter_single_coalesced(self, outputs: list, inputs: list, opts: Any = c10d.ReduceScatterOptions()) -> Any:
        op, factor = _reduction(opts)
        return _last_of(
            self._do("reduce_scatter", output, (one,), opts, outputs, op=op, factor=factor)
            for output, one in zip(outputs, inputs)
        )

    # ---- moves

    def broadcast(self, tensors: list, opts: Any = c10d.BroadcastOptions()) -> Any:
        (tensor,) = tensors
        return self._do("broadcast", tensor, (), opts, tensors, root=opts.rootRank)

    def allgather(self, output_tensors: list, input_tensors: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        (outputs,), (one,) = output_tensors, input_tensors
        if len({output.data_ptr() for output in outputs}) == len(outputs):
            return self._do("all_gather", outputs, (one,), opts, outputs)
        # Some tensors are the same object: the last rank's part stays in it, on every rank.
        parts = [torch.empty_like(output, memory_format=torch.contiguous_format) for output in outputs]
        return self._do("all_gather", parts, (one,), opts, outputs, into=outputs)

    def all_gather_single(self, output: Any, input: Any, opts: Any = c10d.AllgatherOptions()) -> Any:
        return self._do("all_gather", output, (input,), opts, [output])

    def all_gather_single_coalesced(self, outputs: list, inputs: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        return _last_of(
            self._do("all_gather", output, (one,), opts, outputs) for output, one in zip(outputs, inputs)
        )

    def allgather_coalesced(self, output_lists: list, inputs: list, opts: Any = c10d.AllgatherOptions()) -> Any:
        # One list for each rank, with one tensor for each input.
        return _last_of(
            self._do("all_gather", [output[position] for output in output_lists], (one,), opts, output_lists)
            for position, one in enumerate(inputs)
        )

    def gather(self, output_tensors: list, input_tensors: list, opts: Any = c10d.GatherOptions()) -> Any:
        outputs = output_tensors[0] if opts.rootRank == self._comm.rank else None
        (one,) = input_tensors
        return self._do("gather", outputs, (one,), opts, _flat(outputs or []), root=opts.rootRank)

    def scatter(self, output_tensors: list, input_tensors: list, opts: Any = c10d.ScatterOptions()) -> Any:
        inputs = input_tensors[0] if opts.rootRank == self._comm.rank else None
        (output,) = output_tensors
        return self._do("scatter", output, (inputs,), opts, output_tensors, root=opts.rootRank)

    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: list, input_split_sizes: list, opts: Any = c10d.AllToAllOptions()
    ) -> Any:
        splits = (output_split_sizes or None, input_split_sizes or None)
        return self._do("all_to_all", output, (input, *splits), opts, [output])

    def alltoall(self, output_tensors: list, input_tensors: list, opts: Any = c10d.AllToAllOptions()) -> Any:
        return self._do("all_to_all", output_tensors, (input_tensors,), opts, output_tensors)

    # ---- messages

    def send(self, tensors: list, dst_rank: int, tag: int = 0) -> Any:
        (tensor,) = tensors
        if _torch_gpu.gpu.holds(tensor):
            return self._message_on_gpu("send", tensors, dst_rank, tag)
        return self._issued(_Work(self._comm.send(_dense(tensor), dst_rank, tag, async_op=True), tensors))

    def recv(self, tensors: list, src_rank: int, tag: int = 0) -> Any:
        (tensor,) = tensors
        if _torch_gpu.gpu.holds(tensor):
            return self._message_on_gpu("recv", tensors, src_rank, tag)
        dense = _dense(tensor)
        return self._issued(_Work(self._comm.recv(dense, src_rank, tag, async_op=True), tensors, (tensor, dense)))

    def recv_anysource(self, tensors: list, tag: int = 0) -> Any:
        (tensor,) = tensors
        if _torch_gpu.gpu.holds(tensor):
            raise _errors.Unsupported("a receive on a GPU must name the rank that it is from")
        dense = _dense(tensor)
        return self._issued(_Work(self._comm.recv(dense, None, tag, async_op=True), tensors, (tensor, dense)))

    def _message_on_gpu(self, name: str, tensors: list, peer: int, tag: int) -> Any:
        (tensor,) = tensors
        index = _torch_gpu.gpu.index(tensor)
        communicator, peer = self._gpus.for_message(index, peer, self._together is not None)
        dense = _dense(tensor)
        stream = _torch_gpu.gpu.stream(index)
        work = getattr(communicator, name)(dense, peer, tag, async_op=True, stream=stream)
        copy = None if name == "send" or _same(dense, tensor) else (tensor, dense)
        return self._issued(_on_stream(index, work, tensors, copy))

    # ---- the rest

    def barrier(self, opts: Any = c10d.BarrierOptions()) -> Any:
        self._gpus.synchronize()  # a barrier holds up the host
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
        arriving: dict[int, Any] = {rank: self._comm.recv(torch.zeros_like(token), rank, **how) for rank in others}
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
        sent: list[Any] = [self._comm.send(token, rank, **how) for rank in others]
        for work in sent:
            work.wait()

    def _report_to_first(self, limit: float, how: dict[str, Any], wait_all_ranks: bool) -> None:
        rank, token = self._comm.rank, torch.zeros(1, dtype=torch.uint8)
        self._comm.send(token, 0, **how)
        has_come: Any
        answer: Any
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
        self._gpus.timeout = timeout.total_seconds()
        for communicator in (self._comm, *self._gpus):
            communicator.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout  # what gloo's and NCCL's call it

    def abort(self) -> None:
        for communicator in (self._comm, *self._gpus):
            if not communicator.closed:
                communicator.abort("the process group was aborted")

    def shutdown(self) -> None:
        self._gpus.close()
        self._comm.close()

    def getBackendName(self) -> str:
        return NAME

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    @property
    def communicator(self) -> collectives.Communicator:
        """The communicator for the host's memory."""
        return self._comm

    def gpu_communicator(self, index: int) -> collectives.Communicator:
        """The communicator for a GPU. Collective, if none has been used yet."""
        return self._gpus.of_all(index)

    # As torch called them before 2.14.
    alltoall_base = all_to_all_single
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _on_stream(index: int, work: Any, outputs: list[Any], copy: tuple[Any, Any] | None) -> StreamWork:
    if copy is None:
        return StreamWork(index, work, outputs)
    places, came = copy

    def put_back() -> None:
        _copy_back(places, came)
        _torch_gpu.gpu.used(came, index)  # which was allocated in the stream that the operation was issued to

    return StreamWork(index, work, outputs, put_back)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return all(map(_same, one, other))
    if isinstance(one, torch.Tensor):
        return one.data_ptr() == other.data_ptr() and one.dtype == other.dtype and one.stride() == other.stride()
    return True


_kept: set[PythonBackend] = set()


class PythonBackend(Operations, c10d.Backend):
    """For torch whose Backend can be one of Python."""

    def __init__(self, communicator: Any, gpus: Communicators, group: Any = None) -> None:
        c10d.Backend.__init__(self, communicator.rank, communicator.size)
        self._comm, self._gpus = communicator, gpus
        self._group = group  # until it is made
        if c10d.get_debug_level() == c10d.DebugLevel.DETAIL:
            # torch wraps the backend then, and keeps its C++ part alone.
            _kept.add(self)

    def shutdown(self) -> None:
        super().shutdown()
        _kept.discard(self)

    def _set_group_uid(self, uid: str) -> None:
        """torch calls this when it has made a group, and registered it for its devices."""
        super()._set_group_uid(uid)
        group, self._group = self._group, None
        asked = [
            device.type
            for device in (group._device_types if group is not None else ())
            if device.type != "cpu" and group._get_backend(device).name() == self.getBackendName()
        ]
        refused = [device for device in asked if device != "cuda" or not _torch_gpu.gpu.available()]
        if refused:
            self.shutdown()
            why = "torch sees no GPU" if refused == ["cuda"] else "works on cpu and cuda"
            raise _errors.Unsupported(
                f"backend {self.getBackendName()} is asked for on {', '.join(refused)}: {why}; name another for that, such as "
                f'"cpu:{self.getBackendName()},{refused[0]}:..."'
            )

    # All of these must be defined: the inherited ones recurse without end.
    @property
    def options(self) -> Any:
        return c10d.Backend.Options(self.getBackendName(), timedelta(seconds=self._comm.timeout))

    supports_coalescing = property(lambda self: _torch_gpu.gpu.available())
    supports_reconfigure = property(lambda self: False)
    supports_shrinking = property(lambda self: False)
    supports_splitting = property(lambda self: True)
    supports_window = property(lambda self: False)
    _supports_time_estimate = property(lambda self: False)

    def split(self, store: c10d.Store, ranks: list[int], options: Any) -> PythonBackend:
        """The group that dist.split_group() puts this rank into. Its members meet in the store; other ranks do nothing."""
        if self._comm.rank not in ranks:  # torch's C++ takes None from C++ alone
            raise _errors.Unsupported(
                f"split_group leaves out rank {self._comm.rank}, which torch can't tell a backend made in Python: name every rank in "
                "split_ranks, those left out in a list of their own, or use new_group"
            )
        timeout = self._comm.timeout if options is None else options._timeout.total_seconds()
        name = str(getattr(options, "group_name", "") or f"{self._comm.name}/split")
        return _make(PythonBackend, store, ranks.index(self._comm.rank), len(ranks), name, timeout)

    def perform_nocolor_split(self, device: Any) -> None:
        """torch calls this on ranks outside of a new group."""

    def eager_connect_single_device(self, device: Any) -> None:
        """Communicators of GPUs are made when they are needed."""


class _ProcessGroup(Operations, c10d.ProcessGroup):
    """For torch before: its ProcessGroup can be one of Python, and is then the whole group."""

    def __init__(self, communicator: collectives.Communicator, gpus: Communicators) -> None:
        c10d.ProcessGroup.__init__(self, communicator.rank, communicator.size)
        self._comm, self._gpus = communicator, gpus
        self._name = communicator.name
        gpus.check = self._check_that_gpus_are_ours

    def _check_that_gpus_are_ours(self) -> None:
        """The whole group is ours, also where the program names another backend for GPUs."""
        from torch.distributed import distributed_c10d

        asked = distributed_c10d._world.pg_backend_config.get(self, "")
        other = dict(one.split(":") for one in asked.split(",") if ":" in one).get("cuda", NAME)
        if other != NAME:
            raise _errors.Unsupported(
                f'torch {torch.__version__} gives a backend made in Python the whole group, so "{asked}" has no {other} for GPUs: '
                f'use "{NAME}" for both, a group of {other} beside this one (new_group), or torch 2.14 or later'
            )

    def _done(self, outputs: list[Any]) -> Any:
        return _Work(None, outputs)

    def _get_backend(self, device: torch.device) -> _ProcessGroup:
        return self

    supports_coalescing = property(lambda self: _torch_gpu.gpu.available())
    supports_splitting = False  # torch asks when the job is bound to a device

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
        ask_the_work_behind(_name)


def _make(kind: Any, store: c10d.Store, rank: int, size: int, name: str, timeout: float, *more: Any) -> Any:
    met = Store(store)
    communicator = collectives.Communicator(rank=rank, size=size, name=name, store=met, timeout=timeout)
    # torch before 2.14 does not say which messages are issued together.
    return kind(communicator, Communicators(communicator, met, in_pairs=TAKES_BACKENDS), *more)


def create(options: Any, backend_options: Any = None) -> Operations:
    how = (options.store, options.group_rank, options.group_size, str(options.group_id or "world"), options.timeout.total_seconds())
    return _make(PythonBackend, *how, options.process_group) if TAKES_BACKENDS else _make(_ProcessGroup, *how)

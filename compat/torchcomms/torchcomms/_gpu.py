"""Communicators whose tensors are on a GPU: operations in the order of torch's streams."""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from towline import Status, _torch_gpu, collectives, gpu_memory

from ._backends import Native, is_registered
from ._ranks import rank_and_size
from ._types import CommOptions

# The names of torchcomms' own backends for GPUs; all are ours here.
NAMES = ("towline", "nccl", "ncclx")
# Those that programs know to order replays of graphs with calls in other streams.
_LIKE_NCCL = ("nccl", "ncclx")


@functools.cache
def _allocator() -> Any:
    return gpu_memory.torch_allocator()  # kept: torch keeps no reference


def get_mem_allocator(backend: str) -> Any:
    """What torch.cuda.MemPool takes, for memory that the ranks of a host can share. RuntimeError: the backend is none of ours for GPUs."""
    if backend not in NAMES or is_registered(backend):
        raise RuntimeError(f"getMemAllocator not implemented by backend {backend}")
    return _allocator().allocator()


class StreamedWork:
    """An operation beside the streams: wait() orders the current one after it, wait_blocking() holds up the host."""

    def __init__(self, index: int, work: collectives.Work) -> None:
        self._index, self._work = index, work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, timeout: float | None = None) -> None:
        self._work.wait_on(_torch_gpu.gpu.stream(self._index))
        _torch_gpu.gpu.settle(self._index)
        if timeout is not None:
            self._work.wait(timeout)

    def wait_blocking(self) -> None:
        self.wait()
        self._work.wait()

    @property
    def state(self) -> str:
        self._work.poll()  # which looks at the GPU
        return self._work.state


class EnqueuedWork:
    """An operation in the current stream itself: there is nothing to order."""

    state = "completed"

    def __init__(self, index: int, communicator: collectives.Communicator) -> None:
        self._index, self._communicator = index, communicator

    def wait(self, timeout: float | None = None) -> None:
        pass

    def wait_blocking(self) -> None:
        """RuntimeError: the communicator broke, in this operation or another."""
        _torch_gpu.gpu.synchronize(self._index)
        if self._communicator.closed:
            return
        status, why = self._communicator.error
        if status != Status.OK:
            raise RuntimeError(why)


class JointWork:
    """Several works as one."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self, timeout: float | None = None) -> None:
        for work in self._works:
            work.wait(timeout)

    def wait_blocking(self) -> None:
        for work in self._works:
            work.wait_blocking()

    def on_start(self, hook: Callable[[], None]) -> None:
        self._when_all("on_start", hook)

    def on_end(self, hook: Callable[[], None]) -> None:
        self._when_all("on_end", hook)

    def _when_all(self, event: str, hook: Callable[[], None]) -> None:
        if not self._works:
            return hook()
        left = itertools.count(len(self._works) - 1, -1)  # of which each thread takes the next

        def one() -> None:
            if next(left) == 0:
                hook()

        for work in self._works:
            getattr(work, event)(one)

    @property
    def state(self) -> str:
        states = {work.state for work in self._works} - {"completed"}
        return next((one for one in ("error", "timed_out", "in_progress", "not_started") if one in states), "completed")


class _Batch:
    def __init__(self, calls: _Calls) -> None:
        self._calls, self._messages = calls, []

    def send(self, tensor: Any, peer: int) -> None:
        self._messages.append(("send", tensor, peer))

    def recv(self, tensor: Any, peer: int) -> None:
        self._messages.append(("recv", tensor, peer))

    def issue(self, async_op: bool = False, **how: Any) -> JointWork:
        # All beside the stream: none waits for another.
        works = [getattr(self._calls, name)(tensor, peer, async_op=True, **how) for name, tensor, peer in self._messages]
        joint = JointWork(works)
        if not async_op:
            joint.wait()
        return joint


def _tell_of_graph(told: dict[str, Any]) -> None:
    """Where an operation that a graph recorded timed out: the words of torchcomms' own watcher of graphs, which programs look for."""
    late = re.search(r"timed out in (.*), which graph (\d+) recorded: (.*)", told["reason"], re.DOTALL)
    if late is not None:
        operation, graph, why = late.groups()
        print(f"Graph monitor: collective TIMED OUT for graph {graph}: {operation}: {why}", file=sys.stderr, flush=True)


class _Calls:
    """A communicator's operations, in the stream that is current when they are called or beside it."""

    def __init__(self, communicator: collectives.Communicator, index: int) -> None:
        self._communicator, self._index = communicator, index
        self._graphs: collectives.Hook | None = None  # from the first operation on that a graph records

    def __getattr__(self, name: str) -> Any:
        operation, index = getattr(self._communicator, name), self._index

        def call(*arguments: Any, async_op: bool = False, **how: Any) -> Any:
            if self._graphs is None and _torch_gpu.gpu.graph(index) != 0:
                self._graphs = self._communicator.hook("abort", _tell_of_graph)
            work = operation(*arguments, async_op=async_op, stream=_torch_gpu.gpu.stream(index), **how)
            if work is not None:
                return StreamedWork(index, work)
            _torch_gpu.gpu.settle(index)
            return EnqueuedWork(index, self._communicator)

        setattr(self, name, call)
        return call

    def batch(self) -> _Batch:
        return _Batch(self)


class NativeOnGpu(Native):
    """A communicator of ours on one GPU."""

    _aborted = False  # by this rank, since it was made or reconfigured

    def __init__(
        self, name: str, options: CommOptions, device: torch.device, comm: collectives.Communicator | None = None
    ) -> None:
        # As torchcomms' own backends: ranks are dealt out to GPUs where none is named, and the thread uses its rank's from now on.
        gpus = _torch_gpu.gpu.count()
        self.index = device.index if device.index is not None else rank_and_size()[0] % max(gpus, 1)
        self.device = torch.device(device.type, self.index)
        if gpus != 0:  # else opening the communicator says what is missing
            _torch_gpu.gpu.use(self.index)
        self._calls: _Calls | None = None
        super().__init__(name, options, comm)

    def _features(self) -> set[str]:
        more = {"reconfigure", "init_handle"} if self.name == "ncclx" else set()
        return {*super()._features(), "wait_blocking", *more}

    def _form(self) -> collectives.Communicator:
        return self._open(self._place())

    def _open(self, how: dict[str, Any]) -> collectives.Communicator:
        settings = f"[tuning.collectives]\ngpu = {self.index}\n"
        if self.name in _LIKE_NCCL:
            settings += "gpu_order_replays = 1\n"
        self._aborted = False
        return super()._open({**how, "backend": _torch_gpu.gpu.backend, "config": settings})

    def calls(self) -> _Calls:
        if self._calls is None or self._calls._communicator is not self.comm:
            self._calls = _Calls(self.use(), self.index)
        return self._calls

    def abort(self, reason: str = "the application aborts it") -> None:
        self._aborted = True
        super().abort(reason)

    def finalize(self) -> None:
        """Waits for the current stream. RuntimeError, once all is closed: an operation failed, which those that only enqueue do
        not tell."""
        if self.comm is None or self.comm.closed:
            return
        if self.comm.error[0] == Status.FORKED:  # the parent's
            return self.comm.close()
        broke: list[dict[str, Any]] = []
        hook = self.comm.hook("abort", broke.append)  # other streams are waited for, and their failures found, in closing
        try:
            if _torch_gpu.gpu.graph(self.index) == 0:
                _torch_gpu.gpu.synchronize(self.index)
        finally:
            status, why = self.comm.error
            self.comm.close()
            hook.remove()
        if status == Status.OK and broke:
            status, why = broke[0]["status"], broke[0]["reason"]
        if status not in (Status.OK, Status.CANCELLED) and not self._aborted:
            raise RuntimeError(f"finalize: communicator {self.options.name} is closed, but it failed before: {why}")

    def split(self, ranks: list[int], name: str, options: CommOptions) -> Any:
        comm = self.use().split(ranks, name, options.timeout.total_seconds())
        return None if comm is None else NativeOnGpu(self.name, options, self.device, comm)

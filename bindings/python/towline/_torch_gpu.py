"""torch's GPUs as process groups use them: streams, works on streams, and a group's communicators on its GPUs.

The rules are those of c10d: an operation comes after what the current stream holds, and wait() makes the stream that is
current then come after the operation, without holding up the host.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch

from . import _errors, collectives, gpu_memory
from ._torch_works import AskedWork

_NO_TIMEOUT = timedelta(0)


class Gpu:
    """torch's GPUs. Tests put memory of the host in their place."""

    backend = "gpu"
    real = True

    def __init__(self) -> None:
        self._relays: dict[int, torch.cuda.Stream] = {}
        self._driver: ctypes.CDLL | None = None

    def available(self) -> bool:
        return torch.cuda.is_available()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def current(self) -> int:
        return torch.cuda.current_device()

    def index(self, tensor: torch.Tensor) -> int:
        return tensor.get_device()

    def stream(self, index: int) -> int:
        """The current one."""
        return torch._C._cuda_getCurrentRawStream(index)

    def graph(self, index: int) -> int:
        """The number of the graph that the current stream records, or 0."""
        if not torch.cuda.is_current_stream_capturing():
            return 0
        if self._driver is None:
            self._driver = ctypes.CDLL("libcuda.so.1")
        status, number = ctypes.c_int(0), ctypes.c_uint64(0)
        told = (ctypes.byref(status), ctypes.byref(number), None, None, None)
        code = self._driver.cuStreamGetCaptureInfo_v2(ctypes.c_void_p(self.stream(index)), *told)
        return number.value if code == 0 and status.value == 1 else 0

    def count(self) -> int:
        return torch.cuda.device_count()

    def use(self, index: int) -> None:
        """Makes it the calling thread's."""
        torch.cuda.set_device(index)

    def settle(self, index: int) -> None:
        """Does nothing: later work is in the order of the current stream, which is all that torch's own operations need."""

    def synchronize(self, index: int) -> None:
        torch.cuda.current_stream(index).synchronize()

    def synchronize_all(self, index: int) -> None:
        torch.cuda.synchronize(index)

    def used(self, tensors: Any, index: int) -> None:
        """The current stream uses them: their memory goes to others only after that."""
        if isinstance(tensors, torch.Tensor):
            tensors.record_stream(torch.cuda.current_stream(index))
        elif isinstance(tensors, (list, tuple)):
            for tensor in tensors:
                self.used(tensor, index)

    def mark(self, index: int) -> Callable[[], None]:
        """Remembers where the current stream is; the result makes the then current one come after it."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(index))
        return lambda: event.wait(torch.cuda.current_stream(index))

    def window(self, communicator: collectives.Communicator, tensor: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Collective: a window over the tensor, or over a copy if its memory can't be shared; and the tensor in it."""
        return gpu_memory.window_of(communicator, tensor)

    def at(self, memory: Any) -> torch.Tensor:
        """The bytes of a window's memory."""
        return torch.as_tensor(memory, device="cuda")

    def future(self, index: int, order: Callable[[], None], outputs: Any) -> torch.futures.Future:
        """One whose value is there at once, for streams that come after what order() puts before the current one."""
        made: torch.futures.Future = torch.futures.Future(devices=[torch.device("cuda", index)])
        relay = self._relays.get(index)
        if relay is None:
            relay = self._relays[index] = torch.cuda.Stream(index)
        with torch.cuda.stream(relay):
            order()
            made.set_result(outputs)
        return made


gpu: Gpu = Gpu()


class StreamWork(AskedWork):
    """An operation beside torch's streams. `outputs` are what its future yields.

    `copy` is a function that puts what travelled where it belongs, in the current stream; None: it travelled as it is.
    """

    def __init__(self, index: int, work: collectives.Work, outputs: list[Any], copy: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._index, self._work, self._outputs = index, work, outputs
        self._copy = copy
        self._copied: Any = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        self._order()
        gpu.settle(self._index)
        if timeout > _NO_TIMEOUT:  # only the host can wait for so long and no longer
            self._work.wait(timeout.total_seconds())
        return True

    synchronize = wait

    def _order(self) -> None:
        self._work.wait_on(gpu.stream(self._index))
        if self._copy is None and self._copied is None:
            return
        with self._lock:
            if self._copied is not None:
                self._copied()
            elif self._copy is not None:
                gpu.settle(self._index)
                with torch.inference_mode():
                    self._copy()
                self._copied = gpu.mark(self._index)
                self._copy = None  # after it: another thread looks at this one first

    def is_completed(self) -> bool:
        return self._work.done

    def is_success(self) -> bool:
        return self._work.poll() == _errors.Status.OK

    def exception(self) -> Exception | None:
        if self._work.poll() >= 0:
            return None
        return _errors._make(self._work.poll(), self._work.error)

    def result(self) -> list[Any]:
        return self._outputs

    def source_rank(self) -> int:
        raise _errors.Unsupported("receives on a GPU name the rank that they are from")

    _source_rank = source_rank

    def _make_future(self) -> torch.futures.Future:
        return gpu.future(self._index, self._order, self._outputs)


class JointWork(AskedWork):
    """Several works as one."""

    def __init__(self, works: list[Any]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        return next((error for error in (work.exception() for work in self._works) if error is not None), None)

    def result(self) -> list[Any]:
        return [output for work in self._works for output in work.result()]

    def source_rank(self) -> int:
        raise _errors.InvalidArgument("several receives have several sources")

    _source_rank = source_rank

    def _make_future(self) -> torch.futures.Future:
        return torch.futures.collect_all([work.get_future() for work in self._works])


class Communicators:
    """A group's communicators on its GPUs, made when they are first needed: torch may choose a GPU after it has made a group.

    Making one is collective. Collectives, and messages that are issued together, use one of the whole group. With
    `in_pairs` other messages use one of their two ranks, since the others may not be there.
    """

    def __init__(self, host: collectives.Communicator, store: Any, in_pairs: bool) -> None:
        self._host, self._store, self._in_pairs = host, store, in_pairs
        self._rank, self._size, self._name = host.rank, host.size, host.name
        self.timeout = host.timeout
        self._hooks: list[Any] = []
        self._of_all: dict[int, collectives.Communicator] = {}
        self._of_pairs: dict[tuple[int, int], collectives.Communicator] = {}
        self._numbers: dict[int, int] = {}  # in of_all()'s names, of those that are made or being made
        self._numbering = threading.Lock()
        self._making: dict[tuple[int, ...], threading.Lock] = {}  # each has its own: two pairs may form at once
        self._ended = False
        self.check: Callable[[], None] | None = None  # called before one is made; may refuse

    def of_all(self, index: int) -> collectives.Communicator:
        made = self._of_all.get(index)
        if made is None:
            with self._making.setdefault((index,), threading.Lock()):
                made = self._of_all.get(index)  # another thread may have made it
                if made is None:
                    made = self._of_all[index] = self._make_numbered(index)
        return made

    def _make_numbered(self, index: int) -> collectives.Communicator:
        """Ranks use different GPUs, so the first of the group is 0, whatever its index; one that can't be made has no number."""
        with self._numbering:
            taken = self._numbers.values()
            number = self._numbers[index] = next(number for number in itertools.count() if number not in taken)
        try:
            return self._make(index, f"{self._name}/gpu{number}", self._rank, self._size)
        except BaseException:
            with self._numbering:
                del self._numbers[index]
            raise

    def for_message(self, index: int, peer: int, together: bool) -> tuple[collectives.Communicator, int]:
        """The communicator, and the peer's rank in it."""
        if together or self._size <= 2 or not self._in_pairs:
            return self.of_all(index), peer
        made = self._of_pairs.get((index, peer))
        if made is None:
            with self._making.setdefault((index, peer), threading.Lock()):
                made = self._of_pairs.get((index, peer))
                if made is None:
                    lower, upper = sorted((self._rank, peer))
                    name = f"{self._name}/gpu-pair-{lower}-{upper}"
                    made = self._of_pairs[index, peer] = self._make(index, name, int(self._rank == upper), 2)
        return made, int(self._rank < peer)

    def _make(self, index: int, name: str, rank: int, size: int) -> collectives.Communicator:
        if self._ended:
            raise _errors.Closed("the process group was destroyed")
        if self.check is not None:
            self.check()
        if gpu.graph(index) != 0:
            raise _errors.InvalidArgument(
                f"{name} can't be made while a stream records a graph, and this is its first operation on GPU {index}: run one of this "
                "group before the capture"
            )
        made = collectives.Communicator(
            rank=rank,
            size=size,
            name=name,
            store=self._store,
            timeout=self.timeout,
            backend=gpu.backend,
            config=f"[tuning.collectives]\ngpu = {index}\n",
        )
        if not self._hooks:
            self._hooks.append(self._host.hook("abort", self._broken))
        self._hooks.append(made.hook("abort", self._broken))
        return made

    def _broken(self, told: dict[str, Any]) -> None:
        """One of the group's communicators broke: nobody shall wait in another for a rank that has given up."""
        for communicator in (self._host, *self):
            if not communicator.closed and communicator.error[0] == _errors.Status.OK:
                communicator.abort(told["reason"])

    def __iter__(self) -> Iterator[collectives.Communicator]:
        return iter([*self._of_all.values(), *self._of_pairs.values()])

    def synchronize(self) -> None:
        """Waits until the current streams of the GPUs that were used are done. Raises what failed in them."""
        for index in {*self._of_all, *(index for index, _ in self._of_pairs)}:
            gpu.synchronize(index)
        for communicator in self:
            status, why = communicator.error  # which looks at the GPU
            if status != _errors.Status.OK:
                raise _errors._make(status, why)

    def close(self) -> None:
        self._ended = True
        for communicator in self:
            communicator.close()

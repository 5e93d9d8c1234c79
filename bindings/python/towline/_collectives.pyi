"""The extension module. Use the names through `towline.collectives`."""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Literal, Protocol

from typing_extensions import Buffer

from . import Agent
from ._errors import Error
from ._status import Status

Tensor = Any  # torch's, NumPy's, buffers, DLPack, (address, elements, type)
_Bytes = bytes  # where a class has a member of that name
Timeout = float | None  # seconds; None: the communicator's
Hints = dict[str, Any] | None
# From torch or CuPy, any object with __cuda_stream__, or an address. The operation is enqueued there; its tensors are a GPU's.
Stream = object | None

def status_text(status: int) -> str: ...
def _status_list() -> list[tuple[str, int]]: ...
def _install(status_type: type[Status], make: Callable[[int, str], Error]) -> None: ...
def _close_all() -> None: ...
def _environment(method: str | None) -> tuple[int, int]: ...
def _backends() -> str: ...
def _load_backend(name: str, path: str) -> None: ...

class _Store(Protocol):
    def set(self, key: str, value: bytes) -> object: ...
    def get(self, key: str, timeout: float) -> Buffer:
        """Waits until the key is there; raises TimeoutError."""

class Communicator:
    def __init__(
        self,
        *,
        rank: int | None = None,
        size: int | None = None,
        name: str | None = None,
        backend: str | None = None,
        bootstrap: str | None = None,
        store: _Store | None = None,
        agent: Agent | None = None,
        timeout: Timeout = None,
        abort_process: bool = False,
        shared_memory: bool = True,
        flight_records: int = 0,
        config: str | None = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> None:
        """Collective: returns when all ranks have come.

        Without rank and size the environment says them; `bootstrap` says where to meet: "tcp://host:port", "file:/path",
        a directory's address (which needs an agent) or "env". `timeout` is of forming, and of operations that name none.
        """
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def error(self) -> tuple[Status, str]:
        """(Status.OK, ""), or why the communicator broke."""
    @property
    def timeout(self) -> float: ...
    @timeout.setter
    def timeout(self, timeout: Timeout) -> None: ...
    def set_hint(self, key: str, value: str) -> None: ...
    def all_reduce(
        self,
        tensor: Tensor,
        op: str | int = "sum",
        *,
        output: Tensor | None = None,
        factor: float | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None:
        """In place, or into `output`. As every operation, returns when done, or with `async_op` at once, a Work."""
    def all_reduce_rms_norm(
        self,
        tensor: Tensor,
        residual: Tensor | None = None,
        weight: Tensor | None = None,
        *,
        stream: Stream,
        epsilon: float = 1e-6,
        width: int | None = None,
        output: Tensor | None = None,
        timeout: Timeout = None,
        hints: Hints = None,
    ) -> None:
        """Into a stream: the ranks' sum of `tensor`, plus `residual`, which becomes that; then RMSNorm of each row, times `weight`,
        in place or into `output`. A row is `width` elements, or as many as `weight` has. float32, float16 or bfloat16."""
    def reduce(
        self,
        tensor: Tensor,
        root: int,
        op: str | int = "sum",
        *,
        output: Tensor | None = None,
        factor: float | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None:
        """At the root in place, or into its `output`; nothing else is written."""
    def broadcast(
        self, tensor: Tensor, root: int, *, async_op: bool = False, timeout: Timeout = None, hints: Hints = None
    ) -> Work | None: ...
    def all_gather(
        self,
        output: Tensor | Sequence[Tensor],
        input: Tensor,
        *,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None:
        """Into one tensor, rank after rank, or a list of one for each rank, whose sizes may differ."""
    def all_gather_v(
        self,
        output: Sequence[Tensor],
        input: Tensor,
        *,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None: ...
    def reduce_scatter(
        self,
        output: Tensor,
        input: Tensor | Sequence[Tensor],
        op: str | int = "sum",
        *,
        factor: float | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None: ...
    def reduce_scatter_v(
        self,
        output: Tensor,
        input: Sequence[Tensor],
        op: str | int = "sum",
        *,
        factor: float | None = None,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None: ...
    def gather(
        self,
        output: Tensor | Sequence[Tensor] | None,
        input: Tensor,
        root: int,
        *,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None:
        """`output` is looked at on the root only."""
    def scatter(
        self,
        output: Tensor,
        input: Tensor | Sequence[Tensor] | None,
        root: int,
        *,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None:
        """`input` is looked at on the root only."""
    def all_to_all(
        self,
        output: Tensor | Sequence[Tensor],
        input: Tensor | Sequence[Tensor],
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        *,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None:
        """Splits are rows (of the first dimension) from and for each rank; every rank gives some, or none does."""
    def send(
        self,
        tensor: Tensor,
        peer: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None: ...
    def recv(
        self,
        tensor: Tensor,
        peer: int | None = None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: Timeout = None,
        hints: Hints = None,
        stream: Stream = None,
    ) -> Work | None:
        """From a rank, or from whichever sends first: Work.source tells which."""
    def barrier(
        self, *, async_op: bool = False, timeout: Timeout = None, hints: Hints = None, stream: Stream = None
    ) -> Work | None: ...
    def batch(self) -> Batch: ...
    def split(self, ranks: Iterable[int], name: str | None = None, timeout: Timeout = None) -> Communicator | None:
        """Collective: every rank names the ranks of the group it will be in, in their new order; none gives None."""
    def window(self, memory: Tensor | int) -> Window:
        """Collective: every rank brings its memory, or a number of bytes to allocate."""
    def hook(self, kind: Literal["pre", "post", "abort", "replay"], function: Callable[[dict[str, Any]], object]) -> Hook:
        """"abort": once, with "reason" and "status". "replay": each time a replay of a graph begins or ends an operation that was recorded since; on GPUs of one host."""
    def finalize(self) -> None:
        """Waits until everything issued here has ended; no more is taken."""
    def abort(self, reason: str | None = None) -> None:
        """Breaks the communicator on every rank. From any thread, also while operations wait."""
    def close(self) -> None:
        """Lets what is under way end, tells the others, and frees the communicator. Busy in its own hooks and works' functions."""
    def info(self) -> dict[str, Any]: ...
    def flight_records(self) -> dict[str, Any]:
        """The last operations, in the format of torch's flight recorder."""
    def reset_flight_records(self) -> None: ...
    def __enter__(self) -> Communicator: ...
    def __exit__(self, *error: object) -> None: ...

class Work:
    """An operation that goes on by itself, and keeps its tensors."""

    def wait(self, timeout: Timeout = None) -> None:
        """Raises what it failed with; NotYet when it has not ended by then."""
    def wait_on(self, stream: object) -> None:
        """Orders what comes later in a stream after the operation, which was given `stream`; does not wait. Raises what it
        failed with, if that is known by then."""
    def poll(self) -> Status: ...
    @property
    def done(self) -> bool: ...
    @property
    def state(self) -> Literal["not_started", "in_progress", "completed", "timed_out", "error"]: ...
    @property
    def error(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def source(self) -> int | None:
        """The rank that a receive took its message from, once it has ended well."""
    @property
    def timeout(self) -> float: ...
    def on_start(self, function: Callable[[], object]) -> None: ...
    def on_end(self, function: Callable[[], object]) -> None:
        """Once, on the thread that ends it; at once when it has ended."""
    def __await__(self) -> Generator[object, None, None]: ...

class Batch:
    """Sends and receives that are issued together, as one work."""

    def send(self, tensor: Tensor, peer: int, tag: int = 0) -> None: ...
    def recv(self, tensor: Tensor, peer: int, tag: int = 0) -> None: ...
    def issue(self, *, async_op: bool = False, timeout: Timeout = None, hints: Hints = None) -> Work | None: ...
    def __len__(self) -> int: ...

class Window:
    """Memory of every rank, which the others put into and get from; offsets are bytes."""

    def bytes(self, rank: int) -> int: ...
    def memory(self, rank: int | None = None) -> WindowMemory:
        """A rank's memory in this process, one's own by default."""
    # With `stream` the operation is enqueued there, for windows in memory of a GPU.
    def put(self, rank: int, offset: int, tensor: Tensor, stream: Stream | None = None, timeout: Timeout = None) -> None: ...
    def get(self, rank: int, offset: int, tensor: Tensor, stream: Stream | None = None, timeout: Timeout = None) -> None: ...
    # In a stream, signals have 64 channels; a wait takes the signals of its own channel only.
    def signal(self, rank: int, stream: Stream | None = None, timeout: Timeout = None, channel: int = 0) -> None: ...
    def wait_signal(self, rank: int, timeout: Timeout = None, stream: Stream | None = None, channel: int = 0) -> None:
        """For the next signal of that rank; then its puts before are there."""
    def symmetric(self) -> _Bytes:
        """The bytes that kernels need of a window: towline::device::Symmetric (towline/device/symmetric.cuh)."""
    @property
    def exports(self) -> int:
        """How many buffers of its memory are held: close() refuses while there are any."""
    @property
    def on_gpu(self) -> bool: ...
    def close(self, timeout: Timeout = None) -> None:
        """Collective."""

class WindowMemory:
    """Has the buffer protocol, or, in memory of a GPU, `__cuda_array_interface__`."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]: ...

    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class Hook:
    def remove(self) -> None: ...

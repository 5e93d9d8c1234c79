"""The TransferEngine: writes, reads, sends and counts between engines over RDMA, without an agent.

    from towline import fabric

    engine = fabric.Engine(["ofi:efa/rdmap0s6-rdm"])
    memory = engine.register(kv_cache, readable=True, writable=True)
    ...                                              # hand over engine.address() and memory.descriptor()
    peer = engine.connect(address)
    remote = fabric.Remote(descriptor)
    move = engine.write_pages(peer, memory, mine, remote, theirs, page_bytes=32768, immediate=7, count=64)
    move.wait(10)                                    # or: await move; the peer: engine.wait_counter(7, 64)

Any thread may call anything. Functions given to an engine are called on a thread of its own, one after the other; what
they raise is logged. Peers are numbers. Memory is torch's or NumPy's, anything with the buffer protocol, or
(address, bytes). Memory of GPUs is torch's or CuPy's, or has `gpu=`: the rails read and write it themselves, by dma-buf,
or `register` says who can't. Times are seconds. docs/fabric.md says more.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import concurrent.futures
import json
import logging
import mmap
import threading
import weakref

from . import _errors, _fabric
from ._errors import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from typing import Any

__all__ = ["Buffer", "Engine", "Memory", "Pool", "Remote", "Transfer", "Word", "topology"]

_fabric._install(_errors.Status, _errors._make)
_logger = logging.getLogger("towline.fabric")
_open: weakref.WeakSet[Engine] = weakref.WeakSet()
_DONE, _RECEIVED, _MESSAGE, _LOST, _COUNTED, _CHANGED = range(6)
_READABLE, _WRITABLE = 1, 2
_WRITE, _READ = 1, 2


@atexit.register
def _close_all() -> None:
    for engine in list(_open):
        engine.close()


Remote = _fabric.Remote  # Remote(descriptor): memory of a peer


def _place(memory: Any, writable: bool) -> tuple[int, int, object]:
    """Address, bytes, and what keeps the memory where it is."""
    if isinstance(memory, tuple):
        address, size = memory
        return int(address), int(size), None
    if hasattr(memory, "data_ptr"):  # a tensor of torch
        if not memory.is_contiguous():
            raise _errors.InvalidArgument("the tensor is not contiguous")
        return memory.data_ptr(), memory.numel() * memory.element_size(), memory
    view = _fabric.View(memory, writable)
    return view.address, view.nbytes, view


def _gpu_of(memory: Any) -> tuple[int, int, int] | None:
    """Address, bytes and GPU of a tensor or array there."""
    if isinstance(memory, tuple):
        return None
    if hasattr(memory, "data_ptr"):  # torch
        if memory.device.type == "cpu":
            return None
        if memory.device.type != "cuda":
            raise _errors.Unsupported(f"memory of {memory.device} can't be registered with the fabric")
        address, nbytes, owner = _place(memory, True)
        return address, nbytes, memory.device.index
    if hasattr(memory, "__cuda_array_interface__") and hasattr(memory, "device"):  # CuPy
        told = memory.__cuda_array_interface__
        if told.get("strides") is not None:
            raise _errors.InvalidArgument("the array is not contiguous")
        return told["data"][0], memory.nbytes, memory.device.id
    return None


def topology() -> dict:
    """GPUs, RDMA ports and NUMA nodes of this host, with the rails that serve them; `choice`: which rails "auto" takes, and why."""
    return json.loads(_fabric.topology())


def _indices(pages: Any) -> tuple[object, _fabric.View]:
    if not isinstance(pages, array.array) or pages.itemsize != 4:
        if hasattr(pages, "astype"):
            pages = pages.astype("uint32", casting="same_kind" if pages.dtype.kind == "u" else "unsafe", copy=True)
        else:
            pages = array.array("I", pages)
    return pages, _fabric.View(pages, False)


class Memory:
    """Registered memory of an engine; it and its object stay until it is deregistered or the engine is closed."""

    def __init__(self, engine: Engine, native: int, address: int, nbytes: int, owner: object) -> None:
        self._engine, self._native, self._owner = engine, native, owner
        self.address, self.nbytes = address, nbytes

    def descriptor(self) -> bytes:
        """The descriptor that a peer needs to use it: `Remote(descriptor)`."""
        return self._engine._native.descriptor(self._use())

    def deregister(self) -> None:
        """Raises Busy while a transfer that is not fenced uses it."""
        self._engine._native.deregister(self._use())
        self._native = 0
        self._engine._memories.discard(self)

    def _use(self) -> int:
        if self._native == 0:
            raise _errors.Stale("the memory was deregistered")
        return self._native


class Buffer:
    """One of a pool's: nbytes of `memory` from `offset` on, and `view` of them for the processor. Leaving a `with` gives it back."""

    def __init__(self, pool: Pool, index: int) -> None:
        self._pool, self._index = pool, index
        self.memory, self.nbytes = pool.memory, pool.buffer_bytes
        self.offset = index * pool.buffer_bytes

    @property
    def view(self) -> memoryview:
        return self._pool._view[self.offset : self.offset + self.nbytes]

    def give_back(self) -> None:
        """Once nothing that is under way uses it. Raises Stale the second time."""
        self._pool._give_back(self)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


class Pool:
    """Host buffers of one size in one registered piece of memory, `memory`; any thread takes them.

    buffer_bytes is rounded up to a multiple of 64. readable, writable: by peers that have the memory's descriptor; receives
    need writable.
    """

    def __init__(self, engine: Engine, buffer_bytes: int, buffers: int, *, readable: bool = False, writable: bool = True) -> None:
        if buffer_bytes < 1 or buffers < 1:
            raise _errors.InvalidArgument(f"a pool of {buffers} buffers of {buffer_bytes} bytes")
        self.buffer_bytes = (buffer_bytes + 63) // 64 * 64
        self.buffers = buffers
        bytes_of_all = mmap.mmap(-1, self.buffer_bytes * buffers)
        self._view = memoryview(bytes_of_all)
        self.memory = engine.register(bytes_of_all, readable=readable, writable=writable)
        self._lock = threading.Lock()
        self._free = list(range(buffers - 1, -1, -1))
        self._taken: set[int] = set()

    def take(self) -> Buffer | None:
        """None: all are taken."""
        with self._lock:
            if not self._free:
                return None
            index = self._free.pop()
            self._taken.add(index)
        return Buffer(self, index)

    def _give_back(self, buffer: Buffer) -> None:
        with self._lock:
            if buffer._index not in self._taken:
                raise _errors.Stale("the buffer was given back before")
            self._taken.remove(buffer._index)
            self._free.append(buffer._index)
        buffer._index = -1


class Transfer:
    """Something that ends: a write, read, signal, scatter, barrier, send, receive, or wait for a counter.

    Dropping it lets it go on. `await transfer` raises what went wrong.
    """

    def __init__(self, engine: Engine, number: int, token: int, held: object) -> None:
        self._engine, self._number, self._token, self._held = engine, number, token, held

    def poll(self) -> Status:
        return self._engine._native.poll(self._number)

    @property
    def done(self) -> bool:
        return self.poll() is not Status.IN_PROGRESS

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended. Raises what went wrong, and NotYet while it goes on."""
        status = self._engine._native.wait(self._number, timeout)
        if status is Status.NOT_YET:
            raise _errors.NotYet(f"the transfer is still under way after {timeout} s")
        _raise_unless_ok(status)

    def wait_fenced(self, timeout: float | None = None) -> None:
        """Until nothing of it is read or placed any more. Raises PeerLost if that is known of this side only."""
        _raise_unless_ok(self._engine._native.wait_fenced(self._number, timeout))

    def cancel(self) -> None:
        self._engine._native.cancel(self._number)

    def received(self) -> tuple[int, int]:
        """After a receive has ended well: the peer, and how many bytes came."""
        return self._engine._native.received(self._number)

    def future(self) -> concurrent.futures.Future:
        """A future of the outcome: None, or what went wrong."""
        future: concurrent.futures.Future = concurrent.futures.Future()
        self._engine._when_done(self, lambda status: _settle(future, status))
        return future

    def __await__(self) -> Generator[object, None, None]:
        return asyncio.wrap_future(self.future()).__await__()

    def __del__(self) -> None:
        try:
            self._engine._let_go(self._number, self._held)
        except (AttributeError, _errors.Error):
            pass  # it was never begun, or the engine is closed


def _raise_unless_ok(status: Status) -> None:
    if status < 0:
        raise _errors._make(int(status), _fabric.status_text(int(status)))


def _settle(future: concurrent.futures.Future, status: Status) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if status < 0:
        future.set_exception(_errors._make(int(status), _fabric.status_text(int(status))))
    else:
        future.set_result(None)


class Word:
    """A watched word: `gpu` is its address for kernels, `address` for this process."""

    def __init__(self, engine: Engine, token: int, told: tuple[int, int, int]) -> None:
        self._engine, self._token = engine, token
        self._index, self.address, self.gpu = told

    def unwatch(self) -> None:
        self._engine._functions.pop(self._token, None)
        self._engine._native.unwatch(self._index)


class Engine:
    """rails: "ofi:PROVIDER[/DEVICE][@ADDRESS]" each. listen: of control messages, by default 127.0.0.1 and any port.

    on_message(peer, bytes), on_lost(peer, why) and on_counted(peer, immediate, count) are told what peers do.
    worker_cpu and watcher_cpu: processors for the engine's threads.
    """

    def __init__(
        self,
        rails: Iterable[str],
        *,
        listen: str = "",
        on_message: Callable[[int, bytes], object] | None = None,
        on_lost: Callable[[int, str], object] | None = None,
        on_counted: Callable[[int, int, int], object] | None = None,
        worker_cpu: int | None = None,
        watcher_cpu: int | None = None,
    ) -> None:
        if isinstance(rails, str):
            raise TypeError(f"rails is a list of names: [{rails!r}]")
        self._lock = threading.Lock()
        self._functions: dict[int, Callable] = {}  # by token
        self._tokens = 0
        self._memories: set[Memory] = set()
        self._lingering: list[tuple[int, object]] = []
        self._on = (on_message, on_lost, on_counted)
        self._closed = False
        self._native = _fabric.Engine(list(rails), listen, worker_cpu, watcher_cpu, on_counted is not None)
        _open.add(self)
        self._thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._native), daemon=True, name="towline.fabric")
        self._thread.start()

    def close(self) -> None:
        """Ends what is under way. Not in a function that was given to it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._native.close()
        while (event := self._native.next_event(0)) is not None:
            self._tell(event)
        self._lingering.clear()
        self._memories.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self) -> bytes:
        """Whoever has it may connect."""
        return self._native.address()

    def connect(self, address: bytes) -> int:
        """Returns at once; a peer that can't be reached is lost. The same peer gives the same number."""
        return self._native.connect(address)

    def disconnect(self, peer: int) -> None:
        self._native.disconnect(peer)

    def register(self, memory: object, *, readable: bool = False, writable: bool = False, gpu: int | None = None, dma_buf: tuple[int, int] | None = None) -> Memory:
        """readable, writable: by peers that have its descriptor. Of a GPU, (address, bytes) needs `gpu`, as CUDA numbers it.

        dma_buf: (descriptor, offset) of memory of another device, as (address, bytes); the descriptor stays the caller's.
        """
        access = (_READABLE if readable else 0) | (_WRITABLE if writable else 0)
        if (there := _gpu_of(memory)) is not None:
            address, nbytes, gpu = there
            owner = memory
        else:
            try:
                address, nbytes, owner = _place(memory, True)
            except BufferError:
                if writable:
                    raise
                address, nbytes, owner = _place(memory, False)
        if dma_buf is not None:
            native = self._native.register_dma_buf(address, nbytes, access, *dma_buf)
        elif gpu is not None:
            native = self._native.register_gpu(address, nbytes, access, gpu)
        else:
            native = self._native.register(address, nbytes, access)
        registered = Memory(self, native, address, nbytes, owner)
        self._memories.add(registered)
        return registered

    # --- Transfers. done(status) is called with the outcome; timeout ends a transfer; message goes to on_message. ---

    def write(self, peer: int, local: Memory, remote: Remote, nbytes: int | None = None, *, local_offset: int = 0, remote_offset: int = 0, immediate: int = 0, count: int = 0, message: bytes | None = None, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        return self._single(_WRITE, peer, local, remote, nbytes, local_offset, remote_offset, immediate, count, message, timeout, done)

    def read(self, peer: int, local: Memory, remote: Remote, nbytes: int | None = None, *, local_offset: int = 0, remote_offset: int = 0, immediate: int = 0, count: int = 0, message: bytes | None = None, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        return self._single(_READ, peer, local, remote, nbytes, local_offset, remote_offset, immediate, count, message, timeout, done)

    def write_pages(self, peer: int, local: Memory, local_pages: Sequence[int], remote: Remote, remote_pages: Sequence[int], *, page_bytes: int, local_stride: int = 0, remote_stride: int = 0, local_offset: int = 0, remote_offset: int = 0, immediate: int = 0, count: int = 0, message: bytes | None = None, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        """Page i of a side lies at its offset + pages[i] * stride; a stride of 0 is page_bytes."""
        return self._paged(_WRITE, peer, local, local_pages, remote, remote_pages, (page_bytes, local_stride, remote_stride, local_offset, remote_offset), immediate, count, message, timeout, done)

    def read_pages(self, peer: int, local: Memory, local_pages: Sequence[int], remote: Remote, remote_pages: Sequence[int], *, page_bytes: int, local_stride: int = 0, remote_stride: int = 0, local_offset: int = 0, remote_offset: int = 0, immediate: int = 0, count: int = 0, message: bytes | None = None, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        return self._paged(_READ, peer, local, local_pages, remote, remote_pages, (page_bytes, local_stride, remote_stride, local_offset, remote_offset), immediate, count, message, timeout, done)

    def signal(self, peer: int, *, immediate: int = 0, count: int = 0, message: bytes | None = None, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        """A count or a message without bytes."""
        return self._begin(done, None, lambda token: self._native.signal(peer, immediate, count, message, timeout, token))

    def scatter(self, parts: Iterable[tuple[int, Memory, int, Remote, int, int]], *, immediate: int = 0, count: int = 0, message: bytes | None = None, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        """Writes to many peers as one transfer. A part: (peer, memory, offset, remote, offset, bytes)."""
        parts = list(parts)
        native = [(peer, 0 if local is None else local._use(), at, remote, far, nbytes) for peer, local, at, remote, far, nbytes in parts]
        return self._begin(done, parts, lambda token: self._native.scatter(native, immediate, count, message, timeout, token))

    def add_group(self, peers: Iterable[int]) -> int:
        return self._native.add_group(list(peers))

    def remove_group(self, group: int) -> None:
        self._native.remove_group(group)

    def signal_group(self, group: int, *, immediate: int = 0, count: int = 0, message: bytes | None = None, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        return self._begin(done, None, lambda token: self._native.signal_group(group, immediate, count, message, timeout, token))

    def barrier(self, group: int, immediate: int, *, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        """Ends once every peer of the group has entered as often. The immediate's counter serves nothing else."""
        return self._begin(done, None, lambda token: self._native.barrier(group, immediate, timeout, token))

    def send(self, peer: int, local: Memory, nbytes: int | None = None, *, offset: int = 0, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        """Into a receive that the peer has posted, or will."""
        size = local.nbytes - offset if nbytes is None else nbytes
        return self._begin(done, local, lambda token: self._native.send(peer, local._use(), offset, size, timeout, token))

    def receive(self, local: Memory, nbytes: int | None = None, *, offset: int = 0, peer: int = 0, timeout: float | None = None, done: Callable[[Status, int, int], object] | None = None) -> Transfer:
        """peer 0: from any. done(status, peer, bytes)."""
        size = local.nbytes - offset if nbytes is None else nbytes
        return self._begin(done, local, lambda token: self._native.receive(local._use(), offset, size, peer, timeout, token), True)

    def counter(self, immediate: int) -> int:
        return self._native.counter(immediate)

    def wait_counter(self, immediate: int, value: int, timeout: float | None = None) -> None:
        """Until the counter is at least `value`. Raises NotYet."""
        _raise_unless_ok(self._native.wait_counter(immediate, value, timeout))

    def when_counted(self, immediate: int, value: int, *, timeout: float | None = None, done: Callable[[Status], object] | None = None) -> Transfer:
        return self._begin(done, None, lambda token: self._native.counter_when(immediate, value, timeout, token))

    def mirror_counter(self, immediate: int, address: int) -> None:
        """Stores the counter's value at the address from here on, for GPUs that look there; 0 ends that."""
        self._native.counter_mirror(immediate, address)

    def watch(self, changed: Callable[[int, int], bool], *, gpus: bool = False) -> Word:
        """A word of 64 bits; changed(old, new) is called when it changes, until it returns False."""
        if not callable(changed):
            raise TypeError(f"changed is a function of the old and the new value, not {changed!r}")
        with self._lock:
            self._tokens += 1
            token = self._tokens
        word = Word(self, token, self._native.watch(gpus, token))

        def call(old: int, new: int) -> None:
            if not changed(old, new):
                word.unwatch()

        self._functions[token] = call
        return word

    def rails(self) -> list[dict]:
        """Figures of each rail: name, bytes, requests, connections, breaks, retried requests, the longest pause by a break, and so on."""
        return self._native.rails()

    # --- Inside ---

    def _single(self, op: int, peer: int, local: Memory, remote: Remote, nbytes: int | None, at: int, far: int, immediate: int, count: int, message: bytes | None, timeout: float | None, done: Callable | None) -> Transfer:
        size = local.nbytes - at if nbytes is None else nbytes
        return self._begin(done, (local, remote), lambda token: self._native.single(op, peer, local._use(), at, remote, far, size, immediate, count, message, timeout, token))

    def _paged(self, op: int, peer: int, local: Memory, local_pages: object, remote: Remote, remote_pages: object, layout: tuple, immediate: int, count: int, message: bytes | None, timeout: float | None, done: Callable | None) -> Transfer:
        mine, mine_view = _indices(local_pages)
        theirs, theirs_view = _indices(remote_pages)
        held = (local, remote, mine, mine_view, theirs, theirs_view)
        return self._begin(done, held, lambda token: self._native.paged(op, peer, local._use(), remote, mine_view, theirs_view, *layout, immediate, count, message, timeout, token))

    def _begin(self, done: Callable | None, held: object, start: Callable[[int], int], receives: bool = False) -> Transfer:
        with self._lock:
            self._tokens += 1
            token = self._tokens
        if done is not None:
            self._functions[token] = done
        try:
            number = start(token)
        except BaseException:
            self._functions.pop(token, None)
            raise
        return Transfer(self, number, token, held)

    def _when_done(self, transfer: Transfer, function: Callable[[Status], object]) -> None:
        """Calls it with the outcome, now or by the thread."""
        with self._lock:
            status = transfer.poll()
            if status is Status.IN_PROGRESS:
                before = self._functions.get(transfer._token)

                def both(status: Status, *told: object) -> None:
                    if before is not None:
                        before(status, *told)
                    function(status)

                # The event may lie in the queue already, and is told under this lock only.
                self._functions[transfer._token] = both
                return
        function(status)

    def _let_go(self, number: int, held: object) -> None:
        if self._closed:
            return
        if held is not None and self._native.wait_fenced(number, 0) is Status.NOT_YET:
            self._lingering.append((number, held))  # what it uses stays until it is fenced
            return
        self._native.release(number)

    def _sweep(self) -> None:
        waiting, self._lingering = self._lingering, []
        for number, held in waiting:
            self._let_go(number, held)

    def _tell(self, event: tuple) -> None:
        kind, token, status, peer, first, second, data = event
        on_message, on_lost, on_counted = self._on
        try:
            if kind in (_DONE, _RECEIVED):
                with self._lock:
                    function = self._functions.pop(token, None)
                if function is None:
                    return
                function(Status(status), *((peer, first) if kind == _RECEIVED else ()))
            elif kind == _CHANGED:
                function = self._functions.get(token)
                if function is not None:
                    function(first, second)
            elif kind == _MESSAGE and on_message is not None:
                on_message(peer, data)
            elif kind == _LOST and on_lost is not None:
                on_lost(peer, data.decode("utf-8", "replace"))
            elif kind == _COUNTED and on_counted is not None:
                on_counted(peer, first, second)
        except Exception:
            _logger.exception("a function that was given to an engine failed")


def _serve(reference: weakref.ref[Engine], native: _fabric.Engine) -> None:
    """The thread that calls functions; it ends when the engine is closed or gone."""
    while True:
        event = native.next_event(0.05)
        engine = reference()
        if engine is None:
            native.close()
            return
        if event is not None:
            engine._tell(event)
        if engine._lingering:
            engine._sweep()
        if engine._closed:
            return
        del engine, event

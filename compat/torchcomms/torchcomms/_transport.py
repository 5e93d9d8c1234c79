"""torchcomms' RDMA between pairs, over towline.fabric: any RDMA port, else libfabric's sockets.

Memory of GPUs is registered by dma-buf: the rails read and write it themselves, or the error says which of them, or which
driver, can't. As with kernels' inputs, what wrote it must have ended. The environment decides what else it uses:

    TORCHCOMMS_RDMA_RAILS    rails with commas between, as towline.fabric.Engine takes them. Default: every RDMA port of this
                             host, else ofi:tcp;ofi_rxm
    TORCHCOMMS_RDMA_LISTEN   where control messages arrive. Default: *:0, any port of every address

A process has two engines, whatever it makes: one that peers reach, and one that reaches them.
"""

from __future__ import annotations

import base64
import logging
import os
import threading

import towline
from towline import fabric

__all__ = ["RdmaMemory", "RdmaMemoryMutableView", "RdmaMemoryView", "RdmaRemoteBuffer", "RdmaTransport", "attach_rdma_memory_hook"]

_logger = logging.getLogger("torchcomms")
_CONNECT_SECONDS = 30.0
_MOVE_SECONDS = 60.0  # a peer whose memory is gone may not answer at all
_SOCKETS = "ofi:tcp;ofi_rxm"
_OK, _INTERNAL, _INVALID_ARGUMENT, _INVALID_USAGE, _REMOTE = 0, 3, 4, 5, 6  # torchcomms' numbers of outcomes


class _Engines:
    """The process's engines."""

    def __init__(self) -> None:
        listen = os.environ.get("TORCHCOMMS_RDMA_LISTEN", "*:0")
        self.reached = self._open(listen)
        self.reaching = self._open(listen)
        self.pid = os.getpid()

    @staticmethod
    def _open(listen: str) -> fabric.Engine:
        named = os.environ.get("TORCHCOMMS_RDMA_RAILS", "")
        if named:
            return fabric.Engine(named.split(","), listen=listen)
        try:
            return fabric.Engine(["auto"], listen=listen)
        except towline.Error as error:
            try:
                return fabric.Engine([_SOCKETS], listen=listen)
            except towline.Error as second:
                raise RuntimeError(f"RdmaTransport has no rail: {error}; {_SOCKETS}: {second}") from None


_lock = threading.Lock()
_opened: _Engines | None = None


def _engines() -> _Engines:
    global _opened
    with _lock:
        if _opened is None or _opened.pid != os.getpid():
            _opened = _Engines()
        return _opened


def _outcome(error: towline.Error, what: str) -> int:
    _logger.warning("RdmaTransport: %s failed: %s", what, error)
    if isinstance(error, (towline.InvalidArgument, towline.OutOfRange, towline.PermissionDenied, towline.Mismatch)):
        return _INVALID_ARGUMENT
    if isinstance(error, (towline.PeerLost, towline.Unreachable, towline.TimedOut, towline.Stale)):
        return _REMOTE
    return _INTERNAL


class RdmaRemoteBuffer:
    """Memory of a peer: made by its `RdmaMemory.to_remote_buffer()`, and sent here with pickle."""

    def __init__(self, ptr: int, len: int, access_key: str) -> None:  # noqa: A002: torchcomms' name
        self.ptr, self.len, self.access_key = ptr, len, access_key
        self._remote: fabric.Remote | None = None

    def __reduce__(self) -> tuple:
        return type(self), (self.ptr, self.len, self.access_key)

    def __reduce_ex__(self, _protocol: int) -> tuple:
        return self.__reduce__()

    def _use(self) -> tuple[fabric.Remote, int]:
        """The region that it lies in, and where in it."""
        base, _, descriptor = self.access_key.partition(":")
        try:
            if self._remote is None:
                self._remote = fabric.Remote(base64.b64decode(descriptor, validate=True))
            offset = self.ptr - int(base, 16)
        except ValueError:
            raise towline.InvalidArgument("this is no access key of RdmaMemory") from None
        if offset < 0:
            raise towline.OutOfRange("the buffer begins before the memory that its access key is of")
        return self._remote, offset


class _View:
    def __init__(self, memory: RdmaMemory, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > memory._nbytes:
            raise RuntimeError(f"a view of {length} bytes at {offset} does not lie within memory of {memory._nbytes} bytes")
        self._memory, self._offset, self._length = memory, offset, length

    def size(self) -> int:
        return self._length


class RdmaMemoryView(_View):
    pass


class RdmaMemoryMutableView(_View):
    pass


class RdmaMemory:
    """A contiguous tensor, registered when it is first used. cache_reg has no effect.

    The engine shares one registration among tensors within each other. A tensor of a GPU needs a driver that exports it and
    rails that take it: otherwise to_remote_buffer() raises, and a move returns a number that is not 0.
    """

    def __init__(self, tensor: object, cache_reg: bool = False) -> None:
        if not tensor.is_contiguous():
            raise RuntimeError("RdmaMemory currently requires a contiguous tensor")
        if tensor.device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"RdmaMemory takes tensors of the processor and of CUDA's GPUs: memory of {tensor.device} can't be registered")
        self._tensor, self._nbytes = tensor, tensor.numel() * tensor.element_size()
        self._engines = _engines()
        self._registered: dict[bool, fabric.Memory] = {}
        self._lock = threading.Lock()

    def _register(self, for_peers: bool) -> fabric.Memory:
        with self._lock:
            if for_peers not in self._registered:
                engine = self._engines.reached if for_peers else self._engines.reaching
                self._registered[for_peers] = engine.register(self._tensor, readable=for_peers, writable=for_peers)
            return self._registered[for_peers]

    def to_view(self, offset: int | None = None, length: int | None = None) -> RdmaMemoryView:
        return RdmaMemoryView(self, *self._span(offset, length))

    def to_mutable_view(self, offset: int | None = None, length: int | None = None) -> RdmaMemoryMutableView:
        return RdmaMemoryMutableView(self, *self._span(offset, length))

    def _span(self, offset: int | None, length: int | None) -> tuple[int, int]:
        begin = offset or 0
        return begin, self._nbytes - begin if length is None else length

    def to_remote_buffer(self) -> RdmaRemoteBuffer:
        registered = self._register(True)
        key = f"{registered.address:x}:{base64.b64encode(registered.descriptor()).decode()}"
        return RdmaRemoteBuffer(registered.address, self._nbytes, key)

    def reused_registration(self) -> bool:
        """False: what is shared is the engine's affair, and costs nothing that a caller could save."""
        return False

    def __del__(self) -> None:
        for memory in getattr(self, "_registered", {}).values():
            try:
                memory.deregister()
            except towline.Error:
                pass  # under way, or the engine is closed: it goes with the engine


class RdmaTransport:
    """One end of a pair. `device` says nothing here: rails are chosen for the whole process."""

    def __init__(self, device: object) -> None:
        self._engines = _engines()
        self._peer = 0

    @staticmethod
    def supported() -> bool:
        """True if an engine can be opened, which this does."""
        try:
            _engines()
        except (RuntimeError, towline.Error) as error:
            _logger.info("RdmaTransport is not supported: %s", error)
            return False
        return True

    def bind(self) -> bytes:
        """The address that the peer's connect() takes."""
        return self._engines.reached.address()

    def connect(self, peer_url: bytes) -> int:
        """Waits until the peer has answered."""
        if self._peer:
            return _INVALID_USAGE
        try:
            peer = self._engines.reaching.connect(peer_url)
            self._engines.reaching.signal(peer, message=b"", timeout=_CONNECT_SECONDS).wait(_CONNECT_SECONDS + 1)
        except towline.Error as error:
            return _outcome(error, "connect")
        self._peer = peer
        return _OK

    def connected(self) -> bool:
        return self._peer != 0

    def write(self, local_buffer: RdmaMemoryView, remote_buffer: RdmaRemoteBuffer) -> int:
        """Returns once every byte is at the peer."""
        return self._move(self._engines.reaching.write, "write", local_buffer, remote_buffer)

    def read(self, local_buffer: RdmaMemoryMutableView, remote_buffer: RdmaRemoteBuffer) -> int:
        if not isinstance(local_buffer, RdmaMemoryMutableView):
            raise TypeError("read takes a view of to_mutable_view()")
        return self._move(self._engines.reaching.read, "read", local_buffer, remote_buffer)

    def _move(self, move: object, what: str, local: _View, remote: RdmaRemoteBuffer) -> int:
        if not self._peer:
            _logger.warning("RdmaTransport: %s before connect", what)
            return _INVALID_USAGE
        try:
            if local.size() > remote.len:
                raise towline.OutOfRange(f"{local.size()} bytes do not fit into a remote buffer of {remote.len}")
            memory, offset = remote._use()
            mine = local._memory._register(False)
            transfer = move(self._peer, mine, memory, local.size(), local_offset=local._offset, remote_offset=offset, timeout=_MOVE_SECONDS)
            transfer.wait()
            transfer.wait_fenced()
        except towline.Error as error:
            return _outcome(error, what)
        return _OK


def attach_rdma_memory_hook(reg: object, dereg: object) -> None:
    """Would tell both of what torch's caching allocator for GPUs allocates; not supported here."""
    raise RuntimeError("attach_rdma_memory_hook is not supported: RdmaMemory registers a GPU's tensor by itself, when it is first used")

"""The names of pplx-garden's fabric_lib over towline.fabric: one engine, its rails, callbacks on its own thread.

Callbacks take no status: `on_done()` after every byte has arrived, else `on_error(why)`, exactly one of the two.
"""

from __future__ import annotations

import array
import ctypes
import logging
import mmap
import os
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import towline
from towline import Status, fabric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

__all__ = [
    "DomainAddress",
    "DomainInfo",
    "FabricEngine",
    "MemoryRegionDescriptor",
    "MemoryRegionHandle",
    "PageIndices",
    "TopologyGroup",
    "TransferEngine",
    "TransferEngineBuilder",
    "UvmWatcher",
]

_logger = logging.getLogger(__name__)
_PAGE = 4096  # registered memory is made of whole ones
_POOL_BUFFER_BYTES = 64 << 10
_POOL_BUFFERS = 64
_DEFAULT_RAILS = "ofi:tcp;ofi_rxm@127.0.0.1"


class DomainInfo:
    """A NIC, by the name of its rail. The link speed is 0 where it is not known, else bits per second."""

    def __init__(self, name: str, link_speed: int = 0) -> None:
        self._name, self._link_speed = name, link_speed

    @property
    def name(self) -> str:
        return self._name

    @property
    def link_speed(self) -> int:
        return self._link_speed


class TopologyGroup:
    """A GPU (or, without one, the host) with the NICs and processors near it."""

    def __init__(self, cuda_device: int, numa: int, domains: list[DomainInfo], cpus: list[int]) -> None:
        self._cuda_device, self._numa, self._domains, self._cpus = cuda_device, numa, domains, cpus

    @property
    def cuda_device(self) -> int:
        return self._cuda_device

    @property
    def numa(self) -> int:
        return self._numa

    @property
    def domains(self) -> list[DomainInfo]:
        return list(self._domains)

    @property
    def cpus(self) -> list[int]:
        return list(self._cpus)


class DomainAddress:
    """An engine's address."""

    __slots__ = ("_bytes",)

    def __init__(self, bytes: bytes) -> None:  # noqa: A002
        self._bytes = b"".join((bytes,)) if isinstance(bytes, (memoryview, bytearray)) else _as_bytes(bytes)

    @classmethod
    def from_bytes(cls, bytes: bytes) -> DomainAddress:  # noqa: A002
        return cls(bytes)

    def as_bytes(self) -> bytes:
        return self._bytes

    @classmethod
    def from_str(cls, s: str) -> DomainAddress:
        try:
            return cls(bytes.fromhex(s))
        except ValueError:
            raise ValueError("Invalid Address") from None

    def __str__(self) -> str:
        return self._bytes.hex()

    def __repr__(self) -> str:
        return f"DomainAddress.from_str('{self}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DomainAddress) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self) -> tuple:
        return DomainAddress, (self._bytes,)


def _as_bytes(given: Any) -> bytes:
    return given if isinstance(given, bytes) else bytes(given)


class MemoryRegionHandle:
    """Registered memory of this side, by its address."""

    __slots__ = ("_memory",)

    def __init__(self, memory: fabric.Memory) -> None:
        self._memory = memory

    def capsule(self) -> Any:
        return self._memory

    def debug_str(self) -> str:
        return f"{{ptr: 0x{self._memory.address:012x}}}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryRegionHandle) and self._memory is other._memory

    def __hash__(self) -> int:
        return hash(id(self._memory))


class MemoryRegionDescriptor:
    """Memory of an engine as its peers use it: the engine's address, and the memory's descriptor."""

    __slots__ = ("_address", "_descriptor", "_pointer")
    _HEAD = struct.Struct("<4sQI")
    _MAGIC = b"TPG1"

    def __init__(self, bytes: bytes) -> None:  # noqa: A002
        blob = _as_bytes(bytes)
        if len(blob) < self._HEAD.size:
            raise ValueError("Failed to deserialize: too short")
        magic, self._pointer, length = self._HEAD.unpack_from(blob)
        rest = blob[self._HEAD.size :]
        if magic != self._MAGIC or length > len(rest):
            raise ValueError("Failed to deserialize: no descriptor of this package")
        self._address, self._descriptor = rest[:length], rest[length:]

    @classmethod
    def _make(cls, address: bytes, pointer: int, descriptor: bytes) -> MemoryRegionDescriptor:
        return cls(cls._HEAD.pack(cls._MAGIC, pointer, len(address)) + address + descriptor)

    @classmethod
    def from_bytes(cls, bytes_: bytes) -> MemoryRegionDescriptor:
        return cls(bytes_)

    def as_bytes(self) -> bytes:
        return self._HEAD.pack(self._MAGIC, self._pointer, len(self._address)) + self._address + self._descriptor

    def debug_str(self) -> str:
        return f"[{{addr: {self._address.hex()}, ptr: 0x{self._pointer:012x}}}]"

    def __reduce__(self) -> tuple:
        return MemoryRegionDescriptor, (self.as_bytes(),)


class PageIndices:
    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = array.array("I", indices)


class UvmWatcher:
    """A watched word; a kernel writes to `ptr`."""

    def __init__(self, word: fabric.Word) -> None:
        self._word = word

    @property
    def ptr(self) -> int:
        return self._word.gpu


class FabricEngine:
    """The parts of an engine."""

    def __init__(self, engine: fabric.Engine) -> None:
        self._engine = engine


class TransferEngineBuilder:
    def __init__(self) -> None:
        self._groups: list[tuple[int, list[DomainInfo], int, int]] = []

    def add_gpu_domains(self, cuda_device: int, domains: list[DomainInfo], pin_worker_cpu: int, pin_uvm_cpu: int) -> TransferEngineBuilder:
        self._groups.append((cuda_device, list(domains), pin_worker_cpu, pin_uvm_cpu))
        return self

    def build(self) -> TransferEngine:
        if not self._groups:
            raise RuntimeError("no GPU's domains were added")
        if len({len(domains) for _, domains, _, _ in self._groups}) != 1 or not self._groups[0][1]:
            raise RuntimeError("every GPU needs the same number of domains, at least one")
        engine = TransferEngine.__new__(TransferEngine)
        engine._open(self._groups)
        return engine


def _gpu_number(device: object) -> int:
    index = getattr(device, "index", None)
    if not isinstance(index, int):  # a string has a method of that name
        index = str(device).partition(":")[2] or 0
    return int(index)


def _bits_per_second(rate: str) -> int:
    """Of "400 Gb/sec (4X NDR)"."""
    number, _, unit = rate.partition(" ")
    try:
        return int(float(number) * 1e9) if unit.startswith("Gb/sec") else 0
    except ValueError:
        return 0


def _found() -> tuple[list[DomainInfo], list[dict]]:
    """The NICs that the environment or this host has, and this host's GPUs."""
    named = os.environ.get("PPLX_GARDEN_RAILS", "")
    if named:
        return [DomainInfo(rail) for rail in named.split(",")], []
    host = fabric.topology()
    domains = [DomainInfo(port["rail"], _bits_per_second(port["rate"])) for port in host["ports"] if port["chosen"]]
    if not domains:
        return [DomainInfo(_DEFAULT_RAILS)], []
    return domains, host["gpus"]


def _nvidia_gpus() -> int:
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


class TransferEngine:
    def __init__(self, nets_per_gpu: int, cuda_devices: list[int]) -> None:
        builder = TransferEngineBuilder()
        groups = {group.cuda_device: group for group in self.detect_topology()}
        for device in cuda_devices:
            if device not in groups:
                raise RuntimeError(f"Not all CUDA devices were registered: [{device}]")
            group = groups[device]
            if len(group.domains) < nets_per_gpu:
                raise RuntimeError(f"Not enough NICs for cuda:{device}: Expected {nets_per_gpu}, got {len(group.domains)}")
            builder.add_gpu_domains(device, group.domains[:nets_per_gpu], group.cpus[0], group.cpus[1])
        self._open(builder._groups)

    def _open(self, groups: list[tuple[int, list[DomainInfo], int, int]]) -> None:
        rails: list[str] = []
        for _, domains, _, _ in groups:
            rails += [domain.name for domain in domains if domain.name not in rails]
        self._lock = threading.Lock()
        self._imm_callback: Callable[[int], None] | None = None
        self._expected: dict[int, list] = {}  # imm: [count, expected, callback]
        self._peers: dict[bytes, int] = {}
        self._registered: dict[int, fabric.Memory] = {}
        self._bouncing: list[tuple] = []
        self._spare: list[int] = []
        self._nets_per_gpu = len(groups[0][1])
        self._link_speed = sum(domain.link_speed for domain in {domain.name: domain for _, domains, _, _ in groups for domain in domains}.values())
        # Without a GPU nothing writes to watched words from beside, so they need no processor of their own.
        self._engine = fabric.Engine(
            rails,
            listen=os.environ.get("PPLX_GARDEN_LISTEN", ""),
            on_counted=self._counted,
            worker_cpu=groups[0][2],
            watcher_cpu=groups[0][3] if _nvidia_gpus() else None,
        )
        self._address = self._engine.address()

    @staticmethod
    def detect_topology() -> list[TopologyGroup]:
        """Each GPU with the NICs nearest to it. GPUs are numbered by PCI address, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
        domains, places = _found()
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) == 1:
            cpus *= 2  # programs take two
        gpus = max(1, _nvidia_gpus())
        per_gpu, cpus_per_gpu = max(1, len(domains) // gpus), max(2, len(cpus) // gpus)

        def part(items: list, size: int, index: int) -> list:
            begin = (index * size) % len(items)
            return (items + items)[begin : begin + size]

        def nics(gpu: int) -> list[DomainInfo]:
            near = set(places[gpu]["near"]) if gpu < len(places) else set()
            first = gpu * per_gpu % len(domains)  # GPUs without a near one share the others out
            others = [d for d in domains[first:] + domains[:first] if d.name not in near]
            return ([d for d in domains if d.name in near] + others)[:per_gpu]

        def numa(gpu: int) -> int:
            return max(0, places[gpu]["numa_node"]) if gpu < len(places) else 0

        return [TopologyGroup(gpu, numa(gpu), nics(gpu), part(cpus, min(cpus_per_gpu, len(cpus)), gpu)) for gpu in range(gpus)]

    @staticmethod
    def builder() -> TransferEngineBuilder:
        return TransferEngineBuilder()

    @property
    def main_address(self) -> DomainAddress:
        return DomainAddress(self._address)

    @property
    def num_domains(self) -> int:
        return len(self._engine.rails())

    @property
    def aggregated_link_speed(self) -> int:
        return self._link_speed

    @property
    def nets_per_gpu(self) -> int:
        return self._nets_per_gpu

    @property
    def fabric_engine(self) -> FabricEngine:
        return FabricEngine(self._engine)

    def stop(self) -> None:
        self._engine.close()

    # --- Memory ---

    def register_tensor(self, tensor: torch.Tensor) -> tuple[MemoryRegionHandle, MemoryRegionDescriptor]:
        if not tensor.is_contiguous():
            raise ValueError("Tensor is not contiguous")
        return self.register_memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor.device, tensor)

    def register_memory(self, ptr: int, len: int, device: torch.device, _owner: object = None) -> tuple[MemoryRegionHandle, MemoryRegionDescriptor]:  # noqa: A002
        if len % _PAGE != 0 or len == 0:
            raise ValueError("Tensor size is not page-aligned")
        if not ptr:
            raise ValueError("Invalid data pointer")
        kind = getattr(device, "type", str(device).partition(":")[0])
        if kind not in ("cpu", "cuda"):
            raise RuntimeError(f"Failed to register memory: memory of {device} can't be registered with the fabric")
        gpu = _gpu_number(device) if kind == "cuda" else None
        try:
            memory = self._engine.register((ptr, len), readable=True, writable=True, gpu=gpu)
        except towline.Error as error:
            raise RuntimeError(f"Failed to register memory: {error}") from error
        memory._owner = _owner
        memory._gpu = gpu
        with self._lock:
            self._registered[ptr] = memory
        return MemoryRegionHandle(memory), MemoryRegionDescriptor._make(self._address, ptr, memory.descriptor())

    def unregister_memory(self, ptr: int) -> None:
        with self._lock:
            memory = self._registered.get(ptr)
        if memory is None:
            raise RuntimeError(f"Failed to unregister memory: nothing is registered at 0x{ptr:x}")
        try:
            memory.deregister()
        except towline.Error as error:
            raise RuntimeError(f"Failed to unregister memory: {error}") from error
        with self._lock:
            self._registered.pop(ptr, None)

    def alloc_scalar_watcher(self, callback: Callable[[int, int], bool]) -> UvmWatcher:
        """A word of 0 in memory that GPUs reach; callback(old, new) until it returns False."""
        try:
            return UvmWatcher(self._engine.watch(callback, gpus=_nvidia_gpus() != 0))
        except towline.Error as error:
            raise RuntimeError(f"Failed to allocate scalar watcher: {error}") from error

    # --- Immediates ---

    def set_imm_callback(self, callback: Callable[[int], None]) -> None:
        """Called for each immediate that is not used as a counter."""
        with self._lock:
            self._imm_callback = callback

    def set_imm_count_expected(self, imm: int, expected_count: int, on_reached: Callable[[], None]) -> tuple[int, int] | None:
        """Counts the immediate from 0; at the expected count it is no counter any more. Returns what it replaces."""
        if expected_count <= 0:
            raise ValueError("Expected count cannot be zero")
        with self._lock:
            before = self._expected.get(imm)
            self._expected[imm] = [0, expected_count, on_reached]
        return None if before is None else (before[0], before[1])

    def remove_imm_count(self, imm: int) -> tuple[int, int] | None:
        with self._lock:
            before = self._expected.pop(imm, None)
        return None if before is None else (before[0], before[1])

    def _counted(self, _peer: int, imm: int, count: int) -> None:
        reached = None
        with self._lock:
            counter = self._expected.get(imm)
            if counter is not None:
                used = min(count, counter[1] - counter[0])
                counter[0] += used
                count -= used
                if counter[0] == counter[1]:
                    del self._expected[imm]
                    reached = counter[2]
            callback = self._imm_callback
        if reached is not None:
            _call(reached)
        for _ in range(count if callback is not None else 0):
            _call(callback, imm)

    # --- Transfers ---

    def submit_bouncing_recvs(self, count: int, len: int, on_recv: Callable[[bytes], None], on_error: Callable[[str], None]) -> None:  # noqa: A002
        """Keeps `count` receives of `len` bytes posted."""
        stride = -(-len // _PAGE) * _PAGE
        arena = mmap.mmap(-1, stride * count)
        memory = self._engine.register(arena, writable=True)
        for index in range(count):
            self._post_receive(memory, arena, index * stride, len, on_recv, on_error)

    def _post_receive(self, memory: fabric.Memory, arena: mmap.mmap, offset: int, size: int, on_recv: Callable, on_error: Callable) -> None:
        def done(status: Status, _peer: int, nbytes: int) -> None:
            if status is Status.OK:
                data = arena[offset : offset + nbytes]
                _call(on_recv, data)
            elif status is not Status.CLOSED:
                _call(on_error, _why(status))
            if status is not Status.CLOSED:
                try:
                    self._post_receive(memory, arena, offset, size, on_recv, on_error)
                except towline.Closed:
                    pass

        self._engine.receive(memory, size, offset=offset, done=done)

    def submit_send(self, addr: DomainAddress, data: bytes, on_done: Callable[[], None], on_error: Callable[[str], None]) -> None:
        """The data is copied."""
        memory, offset, give_back = self._buffer_of(bytes(data))

        def done(status: Status) -> None:
            give_back()
            _tell(status, on_done, on_error)

        try:
            self._engine.send(self._peer(addr.as_bytes()), memory, len(data), offset=offset, done=done)
        except towline.Error as error:
            give_back()
            _refused("SEND", error, on_error)

    def _buffer_of(self, data: bytes) -> tuple[fabric.Memory, int, Callable[[], None]]:
        """Registered memory with the data in it, from a pool if it fits."""
        with self._lock:
            if not self._bouncing:
                arena = mmap.mmap(-1, _POOL_BUFFER_BYTES * _POOL_BUFFERS)
                self._bouncing.append((self._engine.register(arena), arena))
                self._spare = list(range(_POOL_BUFFERS))
            memory, arena = self._bouncing[0]
            index = self._spare.pop() if self._spare and len(data) <= _POOL_BUFFER_BYTES else None
        if index is None:
            own = self._engine.register(data or b"\0")
            # The memory's last user may not be fenced yet; it goes with the engine then.
            return own, 0, lambda: _quietly(own.deregister)
        offset = index * _POOL_BUFFER_BYTES
        arena[offset : offset + len(data)] = data

        def give_back() -> None:
            with self._lock:
                self._spare.append(index)

        return memory, offset, give_back

    def submit_imm(self, imm_data: int, dst_mr: MemoryRegionDescriptor, on_done: Callable[[], None], on_error: Callable[[str], None]) -> None:
        self._submit("imm", dst_mr, imm_data, 1, on_done, on_error, None)

    def submit_write(
        self,
        src_mr: MemoryRegionHandle,
        offset: int,
        length: int,
        imm_data: int | None,
        dst_mr: MemoryRegionDescriptor,
        dst_offset: int,
        on_done: Callable[[], None],
        on_error: Callable[[str], None],
        num_shards: int | None = None,
    ) -> None:
        """The receiver counts one immediate for each shard."""
        if num_shards is not None and not 0 < num_shards <= self.num_domains:
            raise ValueError(f"num_shards is too big. num_shards={num_shards}, num_domains={self.num_domains}")
        count = 0 if imm_data is None else num_shards or self._nets_per_gpu
        moves = None
        if length != 0:
            moves = (src_mr._memory, [(offset, dst_offset, length)])
        self._submit("write", dst_mr, imm_data, count, on_done, on_error, moves)

    def submit_paged_writes(
        self,
        length: int,
        src_mr: MemoryRegionHandle,
        src_page_indices: PageIndices,
        src_stride: int,
        src_offset: int,
        dst_mr: MemoryRegionDescriptor,
        dst_page_indices: PageIndices,
        dst_stride: int,
        dst_offset: int,
        imm_data: int | None,
        on_done: Callable[[], None],
        on_error: Callable[[str], None],
    ) -> None:
        """The receiver counts one immediate for each page."""
        mine, theirs = src_page_indices._indices, dst_page_indices._indices
        if len(mine) != len(theirs):
            raise RuntimeError("Failed to submit paged writes: there are not as many source pages as destination pages")
        count = 0 if imm_data is None else len(mine)
        if length == 0 or not mine:
            return self._submit("paged writes", dst_mr, imm_data, count, on_done, on_error, None)
        if dst_mr._address == self._address:
            moves = [(src_offset + a * src_stride, dst_offset + b * dst_stride, length) for a, b in zip(mine, theirs)]
            return self._submit("paged writes", dst_mr, imm_data, count, on_done, on_error, (src_mr._memory, moves))
        # A stride of 0 means page_bytes to towline; here every page is the first.
        mine = mine if src_stride else array.array("I", bytes(4 * len(mine)))
        theirs = theirs if dst_stride else array.array("I", bytes(4 * len(theirs)))
        try:
            self._engine.write_pages(
                self._peer(dst_mr._address),
                src_mr._memory,
                mine,
                fabric.Remote(dst_mr._descriptor),
                theirs,
                page_bytes=length,
                local_stride=src_stride,
                remote_stride=dst_stride,
                local_offset=src_offset,
                remote_offset=dst_offset,
                immediate=imm_data or 0,
                count=count,
                done=lambda status: _tell(status, on_done, on_error),
            )
        except towline.Error as error:
            _refused("paged writes", error, on_error)
        return None

    def _submit(self, what: str, dst: MemoryRegionDescriptor, imm: int | None, count: int, on_done: Callable, on_error: Callable, moves: tuple[fabric.Memory, list[tuple[int, int, int]]] | None) -> None:
        """A write of at most one range, or a count alone. To memory of this engine the bytes are copied here."""

        def done(status: Status) -> None:
            _tell(status, on_done, on_error)

        if dst._address == self._address:
            return self._copy_to_self(what, dst, imm, count, on_done, moves)
        try:
            peer = self._peer(dst._address)
            if moves is not None:
                memory, [(here, there, size)] = moves
                self._engine.write(peer, memory, fabric.Remote(dst._descriptor), size, local_offset=here, remote_offset=there, immediate=imm or 0, count=count, done=done)
            elif count != 0:
                self._engine.signal(peer, immediate=imm or 0, count=count, done=done)
            else:
                _call(on_done)
        except towline.Error as error:
            _refused(what, error, on_error)
        return None

    def _copy_to_self(self, what: str, dst: MemoryRegionDescriptor, imm: int | None, count: int, on_done: Callable, moves: tuple[fabric.Memory, list[tuple[int, int, int]]] | None) -> None:
        if moves is not None:
            memory, ranges = moves
            with self._lock:
                target = self._registered.get(dst._pointer)
            if target is None or any(min(a, b) < 0 or a + size > memory.nbytes or b + size > target.nbytes for a, b, size in ranges):
                raise RuntimeError(f"Failed to submit {what}: out of range")
            if memory._gpu is not None or target._gpu is not None:
                raise RuntimeError(f"Failed to submit {what}: an engine does not copy memory of GPUs to itself")
            for here, there, size in ranges:
                ctypes.memmove(target.address + there, memory.address + here, size)
        if count != 0:
            self._counted(0, imm or 0, count)
        _call(on_done)

    def _peer(self, address: bytes) -> int:
        with self._lock:
            peer = self._peers.get(address)
        if peer is None:
            peer = self._engine.connect(address)
            with self._lock:
                self._peers[address] = peer
        return peer


def _refused(what: str, error: towline.Error, on_error: Callable[[str], None]) -> None:
    """A peer that is gone is told as it is to transfers under way; anything else is the caller's mistake."""
    if not isinstance(error, towline.PeerLost):
        raise RuntimeError(f"Failed to submit {what}: {error}") from error
    _call(on_error, _why(Status.PEER_LOST))


def _why(status: Status) -> str:
    return f"{status.name}: {fabric._fabric.status_text(int(status))}"


def _tell(status: Status, on_done: Callable[[], None], on_error: Callable[[str], None]) -> None:
    if status is Status.OK:
        _call(on_done)
    else:
        _call(on_error, _why(status))


def _call(function: Callable, *args: object) -> None:
    try:
        function(*args)
    except Exception:
        _logger.exception("a callback failed")


def _quietly(function: Callable[[], None]) -> None:
    try:
        function()
    except towline.Error:
        pass

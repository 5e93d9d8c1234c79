"""Backends by name: communicators of ours, and Python classes that were registered."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any

import torch

import towline
from towline import Error, _torch_group, collectives

from ._ranks import rank_and_size
from ._types import CommOptions, ReduceOp, RedOpType

# Features that a name offers beyond the operations. "gloo" and "mccl" can do what those of torchcomms can.
FEATURES = {
    "towline": set(),
    "gloo": {"reconfigure", "init_handle"},
    "mccl": {"reconfigure", "init_handle", "wait_blocking"},
    "fake": set(),
}

_registered: dict[str, type] = {}
_loaded: set[str] = set()


class TorchCommBackend:
    """Base of backends written in Python: operations without hints and timeouts; None means done."""

    def __init__(self) -> None:
        pass


def register_backend(name: str, backend_class: type[TorchCommBackend]) -> None:
    _registered[name] = backend_class


def is_registered(name: str) -> bool:
    return name in _registered


def make(name: str, device: torch.device, options: CommOptions) -> Any:
    """The implementation of a new communicator."""
    if name == "torch_gloo" and name not in _registered:
        from ._torch_gloo import TorchGloo

        register_backend(name, TorchGloo)
    if device.type == "cuda" and name not in _registered:
        from . import _gpu

        if name in _gpu.NAMES:
            return _gpu.NativeOnGpu(name, options, device)
    if name not in _registered and name not in FEATURES:
        _load(name, device)
    if name in _registered:
        backend = _registered[name]()
        backend.init(device, options.name, options)
        return Registered(name, backend)
    if device.type != "cpu":
        others = "; for GPUs use towline, nccl or ncclx" if device.type == "cuda" else ""
        raise RuntimeError(f"backend {name} works on the CPU; the device is {device}{others}")
    return Native(name, options)


def _load(name: str, device: torch.device) -> None:
    """Asks the environment for a library, then installed packages, for a backend of that name."""
    path = os.environ.get(f"TORCHCOMMS_BACKEND_LIB_PATH_{name.upper()}")
    if path is not None:
        if name not in _loaded:
            try:
                collectives.load_backend(name, path)
            except Error as error:
                if "towline_collective_v1" not in str(error):
                    raise
                raise RuntimeError(
                    f"{error}. Libraries of torchcomms' own C++ interface (create_dynamic_loader_{name}) can't be loaded: "
                    "towline/plugin/collective.h has the table that a library needs"
                ) from error
            _loaded.add(name)
        return
    for point in entry_points(group="torchcomms.backends", name=name):
        point.load()
        if name in _registered:
            return
    from . import _gpu

    if name in _gpu.NAMES:
        raise RuntimeError(f"backend {name} works on GPUs; the device is {device}; for the CPU use gloo or towline")
    raise ModuleNotFoundError(
        f"failed to find backend {name}: known are {', '.join(sorted({*FEATURES, *_registered}))}; others are found by "
        f"TORCHCOMMS_BACKEND_LIB_PATH_{name.upper()} or an entry point of torchcomms.backends that registers it"
    )


def _prefixed(store: Any, prefix: str) -> Any:
    return _torch_group.Store(torch.distributed.PrefixStore(prefix, store))


def _serve_store() -> Any:
    return torch.distributed.TCPStore(_own_address(), 0, is_master=True, wait_for_workers=False)


def _own_address() -> str:
    """The address by which the others reach this host: on the way to MASTER_ADDR, else to anywhere outside."""
    for target in (os.environ.get("MASTER_ADDR"), "192.0.2.1", "2001:db8::1"):  # the latter are nobody's
        try:
            found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM) if target else []
        except OSError:
            continue
        for family, kind, _, _, address in found:
            try:
                with socket.socket(family, kind) as probe:
                    probe.connect(address)  # which sends nothing
                    own = probe.getsockname()[0]
            except OSError:
                continue
            # A host may know its own name by a loopback address, where others do not.
            if not ipaddress.ip_address(own.split("%")[0]).is_loopback or target in ("localhost", "127.0.0.1", "::1"):
                return own
    return "127.0.0.1"


def _with_factor(tensors: Any, op: ReduceOp, how: dict[str, Any], scale: Any) -> tuple[Any, Any]:
    """Returns the tensors to reduce and the reduction to use. PREMUL_SUM's factor is passed along in `how`. A factor in a GPU's
    memory is multiplied in there instead, in stream order: reading it here would wait for the stream and can't be captured."""
    if op.type is not RedOpType.PREMUL_SUM:
        return tensors, op.native
    if not isinstance(op.factor, torch.Tensor) or op.factor.device.type == "cpu":
        how["factor"] = float(op.factor)
        return tensors, op.native
    if isinstance(tensors, (list, tuple)):
        return [scale(one, op.factor.reshape(()).to(one.dtype)) for one in tensors], ReduceOp.SUM.native
    return scale(tensors, op.factor.reshape(()).to(tensors.dtype)), ReduceOp.SUM.native


class Native:
    """A communicator of ours."""

    version = towline.__version__
    device: torch.device | None = None  # where it chose one
    _when_aborted: Callable[[], None] | None = None

    def __init__(self, name: str, options: CommOptions, comm: collectives.Communicator | None = None) -> None:
        self.name, self.options = name, options
        self.features = self._features()
        self._served: Any = None
        if options.enable_reconfigure and "reconfigure" not in self.features:
            raise RuntimeError(f"reconfigure not implemented by backend {name}")
        if comm is None and not options.enable_reconfigure:
            comm = self._form()
        self.comm = comm

    def _features(self) -> set[str]:
        return FEATURES.get(self.name, set())

    def _form(self) -> collectives.Communicator:
        if self.name == "fake":
            return self._open({"backend": "fake", "rank": 0, "size": 1})
        how = self._place()
        if self.name not in FEATURES:
            how["backend"] = self.name
        return self._open(how)

    def _place(self) -> dict[str, Any]:
        """Which rank this is, and where the ranks meet."""
        how: dict[str, Any] = {}
        how["rank"], how["size"] = rank_and_size()
        if self.options.store is not None:
            how["store"] = _prefixed(self.options.store, f"towline/{self.options.name}")
        return how

    def _open(self, how: dict[str, Any]) -> collectives.Communicator:
        how.setdefault("name", self.options.name)
        made = collectives.Communicator(
            timeout=self.options.timeout.total_seconds(),
            abort_process=self._aborts_process(),
            hints=self.options.hints,
            **how,
        )
        if self._when_aborted is not None:
            self.tell_of_abort(self._when_aborted, made)
        return made

    def tell_of_abort(self, function: Callable[[], None], comm: collectives.Communicator | None = None) -> None:
        """The function is called when the communicator breaks, and so are those that later reconfigurations make."""
        comm = comm or self.comm
        self._when_aborted = function
        if comm is not None:
            self._abort_hook = comm.hook("abort", lambda told: function())

    def _aborts_process(self) -> bool:
        """As in torchcomms: failures of gloo are raised, and a communicator that can be reconfigured goes on without the ranks
        that are gone."""
        never = self.name == "gloo" or self.options.enable_reconfigure
        return self.options.abort_process_on_timeout_or_error and not never

    # ---- reconfiguring: every process serves a store; the first of the list is where they meet

    def init_handle(self) -> str:
        if "init_handle" not in self.features:
            raise RuntimeError(f"getInitHandle not implemented by backend {self.name}")
        if self._served is None:
            self._served = _serve_store()
            self._handle = f"towline:{os.getpid()}:{id(self):x}:{self._served.host}:{self._served.port}"
        return self._handle

    def reconfigure(self, uuid: int, handles: Any, timeout: timedelta | None) -> None:
        if "reconfigure" not in self.features:
            raise RuntimeError(f"reconfigure not implemented by backend {self.name}")
        ordered = sorted(handles) if isinstance(handles, (set, frozenset)) else list(handles)
        mine = self.init_handle()
        if mine not in ordered:
            raise RuntimeError("reconfigure: this communicator's handle is not among those given")
        for handle, count in Counter(ordered).items():
            if not re.fullmatch(r"towline:\d+:[0-9a-f]+:.+:\d+", handle):
                raise RuntimeError(f"reconfigure: {handle!r} is no handle of get_init_handle()")
            if count > 1:
                raise RuntimeError(f"reconfigure: the handle {handle!r} is there {count} times")
        limit = timeout or self.options.timeout
        host, port = ordered[0].split(":", 3)[3].rsplit(":", 1)
        store = torch.distributed.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
        if self.comm is not None:
            self.comm.close()
        before, self.options.timeout = self.options.timeout, limit
        try:
            store = _prefixed(store, f"towline/{self.options.name}/{uuid}")
            # A name of its own: who joins late has made fewer of the same name.
            how = {"rank": ordered.index(mine), "size": len(ordered), "store": store}
            self.comm = self._open({**how, "name": f"{self.options.name}.{uuid}"})
            self.comm.barrier()  # the one that serves the store may go only when all have come
        finally:
            self.options.timeout = before
        self.comm.timeout = before.total_seconds()

    # ---- the rest

    @property
    def rank(self) -> int:
        return self.use().rank

    @property
    def size(self) -> int:
        return self.use().size

    def use(self) -> collectives.Communicator:
        if self.comm is None:
            raise RuntimeError("the communicator is not configured yet: call reconfigure()")
        return self.comm

    def calls(self) -> Any:
        """The object that has the operations."""
        return self.use()

    def split(self, ranks: list[int], name: str, options: CommOptions) -> Any:
        comm = self.use().split(ranks, name, options.timeout.total_seconds())
        return None if comm is None else Native(self.name, options, comm)

    def finalize(self) -> None:
        if self.comm is not None:
            self.comm.close()

    def abort(self, reason: str = "the application aborts it") -> None:
        if self.comm is not None and not self.comm.closed:
            self.comm.abort(reason)

    def is_aborted(self) -> bool:
        return self.comm is not None and (self.comm.closed or self.comm.error[0] != towline.Status.OK)

    def set_timeout(self, timeout: timedelta) -> None:
        self.use().timeout = timeout.total_seconds()

    def set_hints(self, hints: dict[str, str]) -> None:
        for key, value in hints.items():
            self.use().set_hint(key, str(value))

    # ---- operations: (arguments) -> Work, or None when done

    def send(self, tensor, peer, **how):
        return self.calls().send(tensor, peer, **how)

    def recv(self, tensor, peer, **how):
        return self.calls().recv(tensor, peer, **how)

    def broadcast(self, tensor, root, **how):
        return self.calls().broadcast(tensor, root, **how)

    def all_reduce(self, tensor, op, **how):
        tensor, native = _with_factor(tensor, op, how, torch.Tensor.mul_)
        return self.calls().all_reduce(tensor, native, **how)

    def reduce(self, tensor, root, op, **how):
        scale = torch.Tensor.mul_ if root == self.rank else torch.mul
        tensor, native = _with_factor(tensor, op, how, scale)
        return self.calls().reduce(tensor, root, native, **how)

    def all_gather(self, outputs, input, **how):
        return self.calls().all_gather(outputs, input, **how)

    def all_gather_v(self, outputs, input, **how):
        return self.calls().all_gather_v(outputs, input, **how)

    all_gather_single = all_gather

    def reduce_scatter(self, output, inputs, op: ReduceOp, **how):
        inputs, native = _with_factor(inputs, op, how, torch.mul)
        return self.calls().reduce_scatter(output, inputs, native, **how)

    def reduce_scatter_v(self, output, inputs, op: ReduceOp, **how):
        inputs, native = _with_factor(inputs, op, how, torch.mul)
        return self.calls().reduce_scatter_v(output, inputs, native, **how)

    reduce_scatter_single = reduce_scatter

    def all_to_all(self, outputs, inputs, **how):
        return self.calls().all_to_all(outputs, inputs, **how)

    all_to_all_single = all_to_all

    def all_to_all_v_single(self, output, input, output_splits, input_splits, **how):
        return self.calls().all_to_all(output, input, output_splits, input_splits, **how)

    def barrier(self, **how):
        return self.calls().barrier(**how)

    def scatter(self, output, inputs, root, **how):
        return self.calls().scatter(output, inputs if root == self.rank else None, root, **how)

    def gather(self, outputs, input, root, **how):
        return self.calls().gather(outputs if root == self.rank else None, input, root, **how)

    gather_single = gather


class Registered:
    """An object of a class that was registered: it takes neither hints nor timeouts."""

    version = "unknown"
    features: set[str] = set()

    def __init__(self, name: str, backend: TorchCommBackend) -> None:
        self.name, self.backend = name, backend

    @property
    def rank(self) -> int:
        return self.backend.get_rank()

    @property
    def size(self) -> int:
        return self.backend.get_size()

    def __getattr__(self, operation: str) -> Any:
        def call(*arguments: Any, async_op: bool = False, timeout: Any = None, hints: Any = None) -> Any:
            return getattr(self.backend, operation)(*arguments, async_op)

        return call

    def init_handle(self) -> str:
        raise RuntimeError(f"getInitHandle not implemented by backend {self.name}")

    def reconfigure(self, uuid: int, handles: Any, timeout: Any) -> None:
        raise RuntimeError(f"reconfigure not implemented by backend {self.name}")

    def split(self, ranks: list[int], name: str, options: CommOptions) -> Any:
        backend = self.backend.split(ranks, name, options)
        return None if backend is None else Registered(self.name, backend)

    def finalize(self) -> None:
        self.backend.finalize()

    def abort(self, reason: str = "") -> None:
        raise RuntimeError(f"abort not implemented by backend {self.name}")

    def is_aborted(self) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self.backend.set_timeout(timeout)

    def set_hints(self, hints: dict[str, str]) -> None:
        pass

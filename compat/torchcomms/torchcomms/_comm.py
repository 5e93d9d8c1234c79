"""Communicators."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from typing import Any, Callable

import torch

from towline import Error

from . import _backends
from ._types import (
    DEFAULT_TIMEOUT,
    POST_HOOK_ARGS,
    PRE_HOOK_ARGS,
    BatchP2POptions,
    CommOptions,
    OpName,
    P2POp,
    P2POpType,
    ReduceOp,
    RemovableHandle,
    seconds_of,
)
from ._work import TorchWork

_op_ids = itertools.count(1)  # of the process
_hook_keys = itertools.count(1)
_FINALIZE_OP_ID = 2**64 - 1


def _flag(name: str, otherwise: bool) -> bool:
    return os.environ[name].lower() in ("1", "true", "yes", "y") if name in os.environ else otherwise


def _usual_timeout() -> timedelta:
    text = os.environ.get("TORCHCOMM_TIMEOUT_SECONDS")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise RuntimeError(f"TORCHCOMM_TIMEOUT_SECONDS={text}: expected seconds, such as 600") from None


class BatchSendRecv:
    """Sends and receives that are issued together and can't wait for one another."""

    def __init__(self, comm: TorchComm) -> None:
        self._comm = comm
        self.ops: list[P2POp] = []

    def send(self, tensor: Any, dst: int) -> None:
        self.ops.append(P2POp(P2POpType.SEND, tensor, dst))

    def recv(self, tensor: Any, src: int) -> None:
        self.ops.append(P2POp(P2POpType.RECV, tensor, src))

    def issue(self, async_op: bool, options: BatchP2POptions | None = None) -> TorchWork:
        ops, self.ops = self.ops, []
        return self._comm._issue_batch(ops, async_op, options)


class AllGatherPHandle:
    """A persistent all_gather: where the parts go each time."""

    def __init__(self, output: Any) -> None:
        self.output = output


class TorchComm:
    """One rank's end of a communicator."""

    def __init__(self, implementation: Any, device: torch.device, options: CommOptions) -> None:
        self._implementation, self._options = implementation, options
        placed = implementation.device if isinstance(implementation, _backends.Native) else None
        self._device = placed or device
        self._finalized = False
        self._pre_hooks: dict[int, Callable] = {}
        self._post_hooks: dict[int, Callable] = {}
        self._abort_hooks: dict[int, Callable] = {}
        self._tells_of_abort = False

    # ---- one way for all operations

    def _run(
        self, operation: str, arguments: tuple, async_op: bool, hints: Any, timeout: timedelta | None, tag: int = 0
    ) -> TorchWork:
        """`tag`: of a message; only for communicators of ours."""
        op_id = 0
        hooked = self._pre_hooks or self._post_hooks
        if hooked:
            op_id = next(_op_ids)
            self._before(operation, op_id, (*arguments, async_op))
        how = {"async_op": async_op, "timeout": seconds_of(timeout), "hints": hints}
        if tag != 0:
            how["tag"] = tag
        try:
            native = getattr(self._implementation, operation)(*arguments, **how)
        except Error as error:
            raise RuntimeError(str(error)) from error
        work = TorchWork(native, timeout or self._options.timeout, "wait_blocking" in self._implementation.features)
        if hooked:
            self._after(operation, op_id, work)
        return work

    def _before(self, operation: str, op_id: int, values: tuple) -> None:
        if self._pre_hooks:
            told = PRE_HOOK_ARGS[operation](*values)
            for hook in list(self._pre_hooks.values()):
                hook(OpName[operation], op_id, told)

    def _after(self, operation: str, op_id: int, work: Any, new_comm: Any = None) -> None:
        if self._post_hooks:
            told = POST_HOOK_ARGS[operation](work)
            if new_comm is not None:
                told.new_comm = new_comm
            for hook in list(self._post_hooks.values()):
                hook(op_id, told)

    # ---- operations

    def send(self, tensor, dst: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("send", (tensor, dst), async_op, hints, timeout)

    def recv(self, tensor, src: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("recv", (tensor, src), async_op, hints, timeout)

    def broadcast(self, tensor, root: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("broadcast", (tensor, root), async_op, hints, timeout)

    def all_reduce(self, tensor, op: ReduceOp, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("all_reduce", (tensor, op), async_op, hints, timeout)

    def reduce(self, tensor, root: int, op: ReduceOp, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("reduce", (tensor, root, op), async_op, hints, timeout)

    def all_gather(self, tensor_list, tensor, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("all_gather", (tensor_list, tensor), async_op, hints, timeout)

    def all_gather_v(self, tensor_list, tensor, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("all_gather_v", (tensor_list, tensor), async_op, hints, timeout)

    def all_gather_single(self, output, input, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("all_gather_single", (output, input), async_op, hints, timeout)

    def reduce_scatter(self, output, input_list, op: ReduceOp, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("reduce_scatter", (output, input_list, op), async_op, hints, timeout)

    def reduce_scatter_v(self, output, input_list, op: ReduceOp, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("reduce_scatter_v", (output, input_list, op), async_op, hints, timeout)

    def reduce_scatter_single(self, output, input, op: ReduceOp, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("reduce_scatter_single", (output, input, op), async_op, hints, timeout)

    def all_to_all_single(self, output, input, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("all_to_all_single", (output, input), async_op, hints, timeout)

    def all_to_all_v_single(
        self, output, input, output_split_sizes, input_split_sizes, async_op: bool, hints=None, timeout=None
    ) -> TorchWork:
        splits = (output_split_sizes, input_split_sizes)
        return self._run("all_to_all_v_single", (output, input, *splits), async_op, hints, timeout)

    def all_to_all(self, output_tensor_list, input_tensor_list, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("all_to_all", (output_tensor_list, input_tensor_list), async_op, hints, timeout)

    def barrier(self, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("barrier", (), async_op, hints, timeout)

    def scatter(self, output_tensor, input_tensor_list, root: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("scatter", (output_tensor, input_tensor_list, root), async_op, hints, timeout)

    def gather(self, output_tensor_list, input_tensor, root: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("gather", (output_tensor_list, input_tensor, root), async_op, hints, timeout)

    def gather_single(self, output, input, root: int, async_op: bool, hints=None, timeout=None) -> TorchWork:
        return self._run("gather_single", (output, input, root), async_op, hints, timeout)

    # ---- a persistent all_gather: memory needs no preparation here, so it is all_gather_single into the kept tensor

    def all_gather_p_init(self, output, hints=None, timeout: timedelta | None = None) -> AllGatherPHandle:
        if not output.is_contiguous():
            raise RuntimeError("all_gather_p_init: the output has to be contiguous")
        if output.numel() % self.get_size() != 0:
            raise RuntimeError(f"all_gather_p_init: {output.numel()} elements can't be parted among {self.get_size()} ranks")
        return AllGatherPHandle(output)

    def all_gather_p_exec(self, handle: AllGatherPHandle, input, async_op: bool, hints=None, timeout=None) -> TorchWork:
        if handle.output is None:
            raise RuntimeError("all_gather_p_exec: the handle was freed")
        return self.all_gather_single(handle.output, input, async_op, hints, timeout)

    def all_gather_p_free(self, handle: AllGatherPHandle) -> None:
        handle.output = None

    def batch_op_create(self) -> BatchSendRecv:
        return BatchSendRecv(self)

    def _issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions | None) -> TorchWork:
        if not isinstance(self._implementation, _backends.Native):
            raise RuntimeError(f"batch_op_issue not implemented by backend {self.get_backend()}")
        timeout = options.timeout if options is not None else None
        hooked, op_id = self._pre_hooks or self._post_hooks, 0
        if hooked:
            op_id = next(_op_ids)
            self._before("batch_op_issue", op_id, (len(ops), async_op))
        try:
            batch = self._implementation.calls().batch()
            for op in ops:
                (batch.send if op.type is P2POpType.SEND else batch.recv)(op.tensor, op.peer)
            hints = options.hints if options is not None else None
            native = batch.issue(async_op=async_op, timeout=seconds_of(timeout), hints=hints)
        except Error as error:
            raise RuntimeError(str(error)) from error
        work = TorchWork(native, timeout or self._options.timeout, "wait_blocking" in self._implementation.features)
        if hooked:
            self._after("batch_op_issue", op_id, work)
        return work

    def new_window(self, tensor: Any | None = None) -> Any:
        from ._window import TorchCommWindow

        op_id = next(_op_ids)
        self._before("new_window", op_id, ())
        window = TorchCommWindow(self)
        if tensor is not None:
            window.tensor_register(tensor)
        self._after("new_window", op_id, None)
        return window

    # ---- life

    def split(self, ranks: list[int], name: str, hints=None, timeout: timedelta | None = None) -> TorchComm | None:
        op_id = next(_op_ids)
        self._before("split", op_id, (ranks, name, False))
        options = CommOptions()
        vars(options).update(vars(self._options))
        options.name, options.hints = name, {**self._options.hints, **(hints or {})}
        options.timeout, options.enable_reconfigure = timeout or self._options.timeout, False
        try:
            implementation = self._implementation.split(list(ranks), name, options)
        except Error as error:
            raise RuntimeError(str(error)) from error
        made = None if implementation is None else TorchComm(implementation, self._device, options)
        self._after("split", op_id, None, made)
        return made

    def finalize(self) -> None:
        if self._finalized:
            return
        self._before("finalize", _FINALIZE_OP_ID, (False,))
        self._finalized = True
        self._implementation.finalize()
        self._after("finalize", _FINALIZE_OP_ID, None)

    def get_init_handle(self) -> str:
        return self._implementation.init_handle()

    def reconfigure(self, uuid: int, init_handles, timeout: timedelta | None = None, hints=None) -> TorchWork:
        try:
            self._implementation.reconfigure(uuid, init_handles, timeout)
        except Error as error:
            raise RuntimeError(str(error)) from error
        return TorchWork(None, timeout, "wait_blocking" in self._implementation.features)

    def abort(self) -> None:
        self._implementation.abort()

    def is_abort_supported(self) -> bool:
        return isinstance(self._implementation, _backends.Native)

    def is_aborted(self) -> bool:
        return self._implementation.is_aborted()

    # ---- what it is

    def get_rank(self) -> int:
        return self._implementation.rank

    def get_size(self) -> int:
        return self._implementation.size

    def get_name(self) -> str:
        return self._options.name

    def get_options(self) -> CommOptions:
        return self._options

    def get_device(self) -> torch.device:
        return self._device

    def get_backend(self) -> str:
        return self._implementation.name

    def get_backend_version(self) -> str:
        return self._implementation.version

    def get_backend_impl(self) -> Any:
        return getattr(self._implementation, "backend", self._implementation)

    unsafe_get_backend = get_backend_impl

    def set_timeout(self, timeout: timedelta) -> None:
        self._implementation.set_timeout(timeout)
        self._options.timeout = timeout

    def set_hints(self, hints: dict[str, str]) -> None:
        self._implementation.set_hints(hints)
        self._options.hints.update(hints)

    def tensor_register(self, tensor: Any) -> None:
        """Nothing has to be registered with us."""

    tensor_deregister = tensor_register

    def get_device_transport(self) -> Any:
        raise RuntimeError(f"getDeviceTransport not implemented by backend {self.get_backend()}")

    def get_mem_allocator(self) -> Any:
        """What torch.cuda.MemPool takes, for memory that the ranks of a host can share. RuntimeError: the communicator is on CPUs."""
        if self._device.type != "cuda":
            raise RuntimeError(f"getMemAllocator not implemented by backend {self.get_backend()} on {self._device}")
        from ._gpu import get_mem_allocator

        return get_mem_allocator(self.get_backend())

    @property
    def mem_allocator(self) -> Any:
        return self.get_mem_allocator()

    # ---- hooks

    @staticmethod
    def _add_hook(hooks: dict[int, Callable], callback: Callable) -> RemovableHandle:
        key = next(_hook_keys)
        hooks[key] = callback
        return RemovableHandle(hooks, key)

    def register_pre_hook(self, callback: Callable) -> RemovableHandle:
        return self._add_hook(self._pre_hooks, callback)

    def register_post_hook(self, callback: Callable) -> RemovableHandle:
        return self._add_hook(self._post_hooks, callback)

    def register_abort_hook(self, callback: Callable[[], None]) -> RemovableHandle:
        """It stays when the communicator is reconfigured."""
        if not self._tells_of_abort and isinstance(self._implementation, _backends.Native):
            hooks = self._abort_hooks

            def aborted() -> None:
                for hook in list(hooks.values()):
                    hook()

            self._implementation.tell_of_abort(aborted)
            self._tells_of_abort = True
        return self._add_hook(self._abort_hooks, callback)

    def __copy__(self) -> TorchComm:
        return self

    def __deepcopy__(self, memo: dict) -> TorchComm:
        return memo.setdefault(id(self), self)


def new_comm(
    backend: str,
    device: torch.device | str,
    name: str | None = None,
    abort_process_on_timeout_or_error: bool | None = None,
    timeout: timedelta | None = None,
    is_high_priority_stream: bool | None = None,
    store: Any | None = None,
    enable_reconfigure: bool = False,
    hints: dict[str, str] | None = None,
) -> TorchComm:
    """Collective: the communicator of all ranks that the environment tells of."""
    options = CommOptions()
    options.name = name or "torchcomm"
    abort = abort_process_on_timeout_or_error
    options.abort_process_on_timeout_or_error = _flag("TORCHCOMM_ABORT_ON_ERROR", True) if abort is None else abort
    options.timeout = timeout or _usual_timeout()
    options.is_high_priority_stream = bool(is_high_priority_stream)
    options.store, options.enable_reconfigure, options.hints = store, enable_reconfigure, dict(hints or {})
    device = torch.device(device)
    try:
        return TorchComm(_backends.make(backend, device, options), device, options)
    except Error as error:
        raise RuntimeError(str(error)) from error

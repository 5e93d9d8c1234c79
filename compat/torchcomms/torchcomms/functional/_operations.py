"""Communicators' operations as operators that torch.compile traces.

Each operator names what it writes. It also writes its communicator's `order`, a tensor without meaning: so the compiler
neither drops an operation (a send has no other result) nor changes the order of one communicator's operations, which
must be the same on all ranks. In compiled code an operation is over, or in the current stream, when the next one runs;
what `async_op` returns is there for wait() alone.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import Any, Callable

import torch

from .._comm import BatchSendRecv, TorchComm
from .._types import NO_TIMEOUT, P2POpType, RedOpType, ReduceOp

_TAIL = "Tensor(z!) order, str comm"
_REDUCTION = ", int reduction, float factor"
# The operators' arguments; the communicator's methods take them in the same order.
_SCHEMAS = {
    "send": f"Tensor tensor, {_TAIL}, int peer",
    "recv": f"Tensor(a!) tensor, {_TAIL}, int peer",
    "broadcast": f"Tensor(a!) tensor, {_TAIL}, int root",
    "all_reduce": f"Tensor(a!) tensor, {_TAIL}{_REDUCTION}",
    "reduce": f"Tensor(a!) tensor, {_TAIL}, int root{_REDUCTION}",
    "all_gather": f"Tensor(a!)[] outputs, Tensor input, {_TAIL}",
    "all_gather_v": f"Tensor(a!)[] outputs, Tensor input, {_TAIL}",
    "all_gather_single": f"Tensor(a!) output, Tensor input, {_TAIL}",
    "reduce_scatter": f"Tensor(a!) output, Tensor[] inputs, {_TAIL}{_REDUCTION}",
    "reduce_scatter_v": f"Tensor(a!) output, Tensor[] inputs, {_TAIL}{_REDUCTION}",
    "reduce_scatter_single": f"Tensor(a!) output, Tensor input, {_TAIL}{_REDUCTION}",
    "all_to_all": f"Tensor(a!)[] outputs, Tensor[] inputs, {_TAIL}",
    "all_to_all_single": f"Tensor(a!) output, Tensor input, {_TAIL}",
    "all_to_all_v_single": f"Tensor(a!) output, Tensor input, {_TAIL}, SymInt[] output_splits, SymInt[] input_splits",
    "scatter": f"Tensor(a!) output, Tensor[] inputs, {_TAIL}, int root",
    "gather": f"Tensor(a!)[] outputs, Tensor input, {_TAIL}, int root",
    "gather_single": f"Tensor(a!) output, Tensor input, {_TAIL}, int root",
    "barrier": _TAIL,
    "batch": f"Tensor(a!)[] received, Tensor[] sent, {_TAIL}, int[] peers, bool[] sends",
}
_TENSORS = {"barrier": 0, "send": 1, "recv": 1, "broadcast": 1, "all_reduce": 1, "reduce": 1}  # of the others: 2

_communicators: weakref.WeakValueDictionary[str, TorchComm] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_original: dict[str, Callable[..., Any]] = {}
_library = torch.library.Library("towline_torchcomms", "DEF")


class CompiledWork:
    """An operation of compiled code: it came before all that follows."""

    def wait(self) -> None:
        pass

    wait_blocking = wait

    def is_completed(self) -> bool:
        return True


def _reduction(op: ReduceOp) -> tuple[int, float]:
    return op.native, (float(op.factor) if op.type is RedOpType.PREMUL_SUM else 1.0)


def _reduce_op(native: int, factor: float) -> ReduceOp:
    kinds = {int(getattr(ReduceOp, kind.name).native): kind for kind in RedOpType if kind is not RedOpType.PREMUL_SUM}
    return ReduceOp(kinds[native]) if native in kinds else ReduceOp.PREMUL_SUM(factor)


def _find(key: str) -> TorchComm:
    comm = _communicators.get(key)
    if comm is None:
        raise RuntimeError("the communicator that this was compiled for is gone: compile again")
    return comm


def _run(name: str) -> Callable[..., None]:
    """Returns the function that carries out an operator."""
    tensors = _TENSORS.get(name, 2)

    def run(*arguments: Any) -> None:
        operands, (_, key, *rest) = arguments[:tensors], arguments[tensors:]
        if "reduction" in _SCHEMAS[name]:
            rest = [*rest[:-2], _reduce_op(*rest[-2:])]
        _original[name](_find(key), *operands, *rest, False)

    return run


def _run_batch(received: list, sent: list, order: Any, key: str, peers: list[int], sends: list[bool]) -> None:
    batch = _find(key).batch_op_create()
    receives, gives = iter(received), iter(sent)
    for peer, is_send in zip(peers, sends):
        if is_send:
            batch.send(next(gives), peer)
        else:
            batch.recv(next(receives), peer)
    _original["issue"](batch, False)


def _refuse(hints: Any, timeout: Any) -> None:
    if hints or (timeout is not None and timeout is not NO_TIMEOUT):  # its value can't be traced
        raise NotImplementedError(
            "operations in torch.compile take their communicator's hints and timeout: use set_hints() and set_timeout() before"
        )


def _traced(name: str) -> Callable[..., Any]:
    """The communicator's method: as ever, or the operator where torch.compile traces."""
    original = _original[name]
    operator = getattr(torch.ops.towline_torchcomms, name)
    tensors, reduces = _TENSORS.get(name, 2), "reduction" in _SCHEMAS[name]
    names = list(inspect.signature(original).parameters)[1:]  # async_op, hints and timeout are the last

    def method(self: TorchComm, *arguments: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            return original(self, *arguments, **named)
        missing = [named.get(one) if one in ("hints", "timeout") else named[one] for one in names[len(arguments) :]]
        arguments = (*arguments, *missing)
        _refuse(*arguments[-2:])
        operands, rest = arguments[:tensors], arguments[tensors:-3]  # async_op makes no difference here
        if reduces:
            rest = (*rest[:-1], *_reduction(rest[-1]))
        operator(*operands, self._order, self._key, *rest)
        return CompiledWork()

    method.__name__ = name
    method.__doc__ = original.__doc__
    return method


def _issue(self: BatchSendRecv, async_op: bool, options: Any = None) -> Any:
    if not torch.compiler.is_compiling():
        return _original["issue"](self, async_op, options)
    if options is not None:
        _refuse(options.hints, options.timeout)
    ops, self.ops = self.ops, []
    sends = [op.type is P2POpType.SEND for op in ops]
    received = [op.tensor for op in ops if op.type is not P2POpType.SEND]
    sent = [op.tensor for op in ops if op.type is P2POpType.SEND]
    peers = [op.peer for op in ops]
    torch.ops.towline_torchcomms.batch(received, sent, self._comm._order, self._comm._key, peers, sends)
    return CompiledWork()


def _prepare(original: Callable[..., None]) -> Callable[..., None]:
    def prepare(self: TorchComm, *arguments: Any) -> None:
        original(self, *arguments)
        self._key = f"{next(_numbers)}"
        self._order = torch.zeros((), dtype=torch.int64, device=self._order_device())
        torch._dynamo.mark_static_address(self._order)
        _communicators[self._key] = self

    return prepare


def _order_device(self: TorchComm) -> torch.device:
    return self.get_device() if self.get_device().type == "cpu" or torch.cuda.is_available() else torch.device("cpu")


def install() -> None:
    """Makes communicators' methods traceable; again does nothing."""
    if _original:
        return
    import torch._dynamo  # noqa: F401

    for name, schema in _SCHEMAS.items():
        _library.define(f"{name}({schema}) -> ()")
        _library.impl(name, _run_batch if name == "batch" else _run(name), "CompositeExplicitAutograd")
        torch.library.register_fake(f"towline_torchcomms::{name}", lambda *_: None, lib=_library)
        if name != "batch":
            _original[name] = getattr(TorchComm, name)
            setattr(TorchComm, name, _traced(name))
    _original["issue"] = BatchSendRecv.issue
    BatchSendRecv.issue = _issue
    TorchComm._order_device = _order_device
    TorchComm.__init__ = _prepare(TorchComm.__init__)


__all__ = ["CompiledWork", "install"]

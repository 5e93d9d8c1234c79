"""Plain data: reductions, options, states, and the arguments of hooks."""

from __future__ import annotations

import copy
from datetime import timedelta
from enum import Enum
from typing import Any

from towline import collectives

DEFAULT_TIMEOUT = timedelta(seconds=600)
NO_TIMEOUT = timedelta(0)  # the communicator's


def seconds_of(timeout: timedelta | None) -> float | None:
    """None: the communicator's, which torchcomms says by NO_TIMEOUT, too."""
    return timeout.total_seconds() if timeout else None


class RedOpType(Enum):
    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6
    PREMUL_SUM = 7
    AVG = 8


class ReduceOp:
    """A reduction: how elements of all ranks become one."""

    __slots__ = ("_type", "factor", "native")

    def __init__(self, type: RedOpType, factor: Any = None) -> None:
        self._type, self.factor = type, factor
        self.native = int(collectives.ReduceOp[type.name])

    @property
    def type(self) -> RedOpType:
        return self._type

    @staticmethod
    def PREMUL_SUM(factor: Any) -> ReduceOp:
        return ReduceOp(RedOpType.PREMUL_SUM, factor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceOp) and (self._type, self.factor) == (other._type, other.factor)

    def __hash__(self) -> int:
        return hash(self._type)

    def __repr__(self) -> str:
        return f"ReduceOp.{self._type.name}" + (f"({self.factor})" if self.factor is not None else "")

    def __copy__(self) -> ReduceOp:
        return ReduceOp(self._type, self.factor)

    def __deepcopy__(self, memo: dict) -> ReduceOp:
        if id(self) not in memo:
            memo[id(self)] = ReduceOp(self._type, copy.deepcopy(self.factor, memo))
        return memo[id(self)]


for _type in RedOpType:
    if _type is not RedOpType.PREMUL_SUM:
        setattr(ReduceOp, _type.name, ReduceOp(_type))


class WorkStatus(Enum):
    NOT_STARTED = 0
    INPROGRESS = 1
    COMPLETED = 2
    TIMEDOUT = 3
    ERROR = 4


class TorchCommWinAccessType(Enum):
    WIN_ACCESS_TYPE_UNIFIED = 0
    WIN_ACCESS_TYPE_SEPARATE = 1


class TorchCommWindowAttr:
    def __init__(self, access_type=TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED) -> None:
        self.access_type = access_type


class P2POpType(Enum):
    SEND = 0
    RECV = 1


class P2POp:
    def __init__(self, type: P2POpType, tensor: Any, peer: int) -> None:
        self.type, self.tensor, self.peer = type, tensor, peer


class CommOptions:
    """The options that a communicator was made with."""

    def __init__(self) -> None:
        self.abort_process_on_timeout_or_error = True
        self.timeout = DEFAULT_TIMEOUT
        self.store: Any = None
        self.name = ""
        self.enable_reconfigure = False
        self.is_high_priority_stream = False
        self.hints: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"CommOptions({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


class _OperationOptions:
    def __init__(self) -> None:
        self.timeout, self.hints = NO_TIMEOUT, {}


class ReconfigureOptions:
    def __init__(self, uuid: int = 0, init_handles=(), timeout: timedelta | None = None, hints=None) -> None:
        self.uuid, self.init_handles, self.timeout, self.hints = uuid, init_handles, timeout, hints or {}


# Operations, and what hooks are told of each besides `async_op`.
OPERATIONS = {
    "send": ("tensor", "peer"),
    "recv": ("tensor", "peer"),
    "broadcast": ("tensor", "root"),
    "all_reduce": ("tensor", "op"),
    "reduce": ("tensor", "root", "op"),
    "all_gather": ("output", "input"),
    "all_gather_v": ("output", "input"),
    "all_gather_single": ("output", "input"),
    "reduce_scatter": ("output", "input", "op"),
    "reduce_scatter_v": ("output", "input", "op"),
    "reduce_scatter_single": ("output", "input", "op"),
    "all_to_all_single": ("output", "input"),
    "all_to_all_v_single": ("output", "input", "output_split_sizes", "input_split_sizes"),
    "all_to_all": ("output", "input"),
    "barrier": (),
    "scatter": ("output", "input", "root"),
    "gather": ("output", "input", "root"),
    "gather_single": ("output", "input", "root"),
    "batch_op_issue": ("num_ops",),
    "split": ("ranks", "name"),
    "new_window": (),
    "finalize": (),
}
OpName = Enum("OpName", {name: name for name in OPERATIONS}, module="torchcomms._comms")


class CollectivePostHookArgs:
    """The argument of post hooks: the work of an operation."""

    def __init__(self, work: Any = None) -> None:
        self.work = work


def _class_name(operation: str) -> str:
    words = {"v": "V", "op": "Op"}
    return "".join(words.get(word, word.capitalize()) for word in operation.split("_"))


def _pre_hook_class(operation: str, fields: tuple[str, ...]) -> type:
    slots = (*fields, "async_op")

    def make(self, *values: Any) -> None:
        for name, value in zip(slots, values):
            setattr(self, name, value)

    name = f"{_class_name(operation)}PreHookArgs"
    return type(name, (), {"__slots__": slots, "__init__": make, "__module__": "torchcomms._comms"})


PRE_HOOK_ARGS = {name: _pre_hook_class(name, fields) for name, fields in OPERATIONS.items()}
POST_HOOK_ARGS = {
    name: type(f"{_class_name(name)}PostHookArgs", (CollectivePostHookArgs,), {"__module__": "torchcomms._comms"})
    for name in OPERATIONS
}
_OPTION_NAMES = (
    "Send Recv BatchP2P Broadcast AllReduce Reduce AllGather AllGatherSingle ReduceScatter ReduceScatterSingle AllToAll "
    "AllToAllSingle AllToAllvSingle Barrier Scatter Gather GatherSingle AllGatherPInit AllGatherPExec"
)
OPTIONS = {f"{name}Options": type(f"{name}Options", (_OperationOptions,), {}) for name in _OPTION_NAMES.split()}
BatchP2POptions = OPTIONS["BatchP2POptions"]


class RemovableHandle:
    """Takes a hook away again."""

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        self._hooks.pop(self._key, None)

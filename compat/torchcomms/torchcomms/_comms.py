"""The names that programs, and torch, import from torchcomms' extension module."""

from . import _backends
from ._backends import TorchCommBackend, register_backend
from ._comm import AllGatherPHandle, BatchSendRecv, TorchComm, new_comm
from ._gpu import get_mem_allocator
from ._types import (
    OPTIONS,
    POST_HOOK_ARGS,
    PRE_HOOK_ARGS,
    CollectivePostHookArgs,
    CommOptions,
    OpName,
    P2POp,
    P2POpType,
    ReconfigureOptions,
    RedOpType,
    ReduceOp,
    RemovableHandle,
    TorchCommWinAccessType,
    TorchCommWindowAttr,
    WorkStatus,
)
from ._window import TorchCommWindow
from ._work import TorchWork
from ._wrapper import _BackendWrapper

_made = {one.__name__: one for one in (*OPTIONS.values(), *PRE_HOOK_ARGS.values(), *POST_HOOK_ARGS.values())}
globals().update(_made)


def _is_backend_registered(name: str) -> bool:
    return _backends.is_registered(name)


__all__ = [
    *("AllGatherPHandle", "BatchSendRecv", "CollectivePostHookArgs", "CommOptions", "OpName", "P2POp", "P2POpType", "ReconfigureOptions"),
    *("RedOpType", "ReduceOp", "RemovableHandle", "TorchComm", "TorchCommBackend", "TorchCommWinAccessType"),
    *("TorchCommWindow", "TorchCommWindowAttr", "TorchWork", "WorkStatus", "get_mem_allocator", "new_comm"),
    *("register_backend", *_made),
]

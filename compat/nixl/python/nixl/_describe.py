"""The forms in which callers describe memory, as descriptor lists. NumPy and torch are looked at, never imported: a caller
with objects of theirs has imported them."""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional

from . import _bindings
from .logging import get_logger

logger = get_logger(__name__)

MEMORY_TYPES = {
    "DRAM": _bindings.DRAM_SEG,
    "VRAM": _bindings.VRAM_SEG,
    "FILE": _bindings.FILE_SEG,
    "BLOCK": _bindings.BLK_SEG,
    "OBJ": _bindings.OBJ_SEG,
    "cpu": _bindings.DRAM_SEG,
    "cuda": _bindings.VRAM_SEG,
}


def is_array(thing: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(thing, numpy.ndarray)


def is_tensor(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def is_strided(thing: Any) -> bool:
    """Whether it is an N x 5 array: rows of (address, length, device, stride, count)."""
    return is_array(thing) and thing.ndim == 2 and thing.shape[1] == 5


def xfer_descs(descs: Any, mem_type: Optional[str]) -> Optional[_bindings.nixlXferDList]:
    """A transfer list of `descs`; None, and a line in the log, where that can't be. See nixl_agent.get_xfer_descs."""
    if isinstance(descs, _bindings.nixlXferDList):
        return descs
    if isinstance(descs, _bindings.nixlRegDList):
        return _refuse("a nixlRegDList describes registrations: a transfer takes a nixlXferDList, as trim() gives")
    return _from_any(descs, mem_type, 3, _bindings.nixlXferDList, lambda row: row)


def reg_descs(descs: Any, mem_type: Optional[str]) -> Optional[_bindings.nixlRegDList]:
    """A registration list of `descs`; None, and a line in the log, where that can't be. See nixl_agent.get_reg_descs."""
    if isinstance(descs, _bindings.nixlRegDList):
        return descs
    if isinstance(descs, _bindings.nixlXferDList):
        return _refuse("a nixlXferDList describes transfers: registering takes a nixlRegDList")
    return _from_any(descs, mem_type, 4, _bindings.nixlRegDList, lambda row: (*row, ""))


def remote_descs(descs: Any, mem_type: Optional[str]) -> Optional[_bindings.nixlRemoteDList]:
    """A list of (address, length, device, agent name); None, and a line in the log, where that can't be."""
    if isinstance(descs, _bindings.nixlRemoteDList):
        return descs
    if not isinstance(descs[0], tuple):
        return None
    if mem_type is None:
        return _refuse("a list of tuples needs mem_type")
    if len(descs[0]) != 4:
        return _refuse("remote descriptors are tuples of 4: address, length, device, agent name")
    return _bindings.nixlRemoteDList(MEMORY_TYPES[mem_type], descs)


def _from_any(descs: Any, mem_type: Optional[str], width: int, make: Callable, row_of: Callable) -> Any:
    """Tuples of `width`, an N x 3 array, a tensor or tensors, to a list by `make`; `row_of` completes a tensor's row."""
    if is_array(descs):
        if mem_type is None:
            return _refuse("an array needs mem_type")
        shape = descs.shape
        if len(shape) != 2 or shape[1] != 3:
            return _refuse(f"an array of descriptors is N x 3 (address, length, device), not {shape}")
        return make(MEMORY_TYPES[mem_type], descs)
    if is_tensor(descs):
        return _from_tensors([descs], make, row_of)
    if len(descs) == 0:
        return make(MEMORY_TYPES[mem_type]) if mem_type is not None else _refuse("an empty list needs mem_type")
    first = descs[0]
    if isinstance(first, tuple):
        if mem_type is None:
            return _refuse("a list of tuples needs mem_type")
        if len(first) != width:
            return _refuse(f"descriptors are tuples of {width} here, not of {len(first)}")
        return make(MEMORY_TYPES[mem_type], descs)
    if is_tensor(first):
        return _from_tensors(descs, make, row_of)
    return None


def _from_tensors(tensors: Any, make: Callable, row_of: Callable) -> Any:
    device = tensors[0].device
    rows = []
    for tensor in tensors:
        if tensor.device != device:
            return _refuse(f"tensors of one list are on one device, not on {device} and {tensor.device}")
        if not tensor.is_contiguous():
            return _refuse("tensors have to be contiguous")
        ordinal = tensor.get_device()
        rows.append(row_of((tensor.data_ptr(), tensor.numel() * tensor.element_size(), max(ordinal, 0))))
    return make(_bindings.DRAM_SEG if tensors[0].get_device() == -1 else _bindings.VRAM_SEG, rows)


def _refuse(why: str) -> None:
    logger.error("%s", why)

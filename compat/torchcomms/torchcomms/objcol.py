"""Objects instead of tensors: each is sent as its length and its bytes.

With weights_only (the default) what is received may hold tensors and plain Python values only; without, it is unpickled,
which runs what the sender wrote. TORCHCOMMS_SERIALIZATION=pickle sends pickles; the default is torch.save's format.
"""

from __future__ import annotations

import io
import os
import pickle
from datetime import timedelta
from typing import Any

import torch


def _dump(obj: object, device: torch.device) -> torch.Tensor:
    if os.environ.get("TORCHCOMMS_SERIALIZATION", "torch_save") == "pickle":
        data = pickle.dumps(obj)
    else:
        file = io.BytesIO()
        torch.save(obj, file)
        data = file.getvalue()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def _load(data: torch.Tensor, weights_only: bool) -> Any:
    raw = data.cpu().numpy().tobytes()
    if os.environ.get("TORCHCOMMS_SERIALIZATION", "torch_save") == "pickle":
        return pickle.loads(raw)
    return torch.load(io.BytesIO(raw), weights_only=weights_only)


def _sizes(tensors: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    return torch.tensor([one.numel() for one in tensors], dtype=torch.int64, device=device)


def _split(data: torch.Tensor, sizes: torch.Tensor) -> list[torch.Tensor]:
    return list(data.split(sizes.tolist()))


def _need(objects: list[Any] | None, count: int, name: str) -> None:
    if objects is None or len(objects) != count:
        raise ValueError(f"{name} needs one entry for each of {count} ranks")


def all_gather_object(
    comm: Any, object_list: list[Any], obj: object, timeout: timedelta | None = None, weights_only: bool = True
) -> None:
    """Fills object_list with every rank's object."""
    device = comm.get_device()
    _need(object_list, comm.get_size(), "object_list")
    mine = _dump(obj, device)
    sizes = torch.zeros(comm.get_size(), dtype=torch.int64, device=device)
    comm.all_gather_single(sizes, _sizes([mine], device), False, timeout=timeout)
    parts = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes.tolist()]
    comm.all_gather_v(parts, mine, False, timeout=timeout)
    object_list[:] = [_load(part, weights_only) for part in parts]


def gather_object(
    comm: Any,
    obj: object,
    root: int,
    object_gather_list: list[Any] | None = None,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Fills the root's object_gather_list with every rank's object."""
    device = comm.get_device()
    rank, size = comm.get_rank(), comm.get_size()
    if rank == root:
        _need(object_gather_list, size, "object_gather_list")
    mine = _dump(obj, device)
    sizes = torch.zeros(size, dtype=torch.int64, device=device)
    comm.all_gather_single(sizes, _sizes([mine], device), False, timeout=timeout)
    counts = sizes.tolist()
    # Everything to the root, nothing to the others.
    received = torch.empty(sum(counts) if rank == root else 0, dtype=torch.uint8, device=device)
    output_splits = counts if rank == root else [0] * size
    input_splits = [mine.numel() if each == root else 0 for each in range(size)]
    comm.all_to_all_v_single(received, mine, output_splits, input_splits, False, timeout=timeout)
    if rank == root:
        object_gather_list[:] = [_load(part, weights_only) for part in _split(received, sizes)]


def send_object_list(comm: Any, object_list: list[Any], dst: int, timeout: timedelta | None = None) -> None:
    device = comm.get_device()
    tensors = [_dump(one, device) for one in object_list]
    comm.send(_sizes(tensors, device), dst, False, timeout=timeout)
    comm.send(torch.cat(tensors), dst, False, timeout=timeout)


def recv_object_list(
    comm: Any, object_list: list[Any], src: int, timeout: timedelta | None = None, weights_only: bool = True
) -> None:
    """Fills object_list, which is as long as the sender's."""
    device = comm.get_device()
    sizes = torch.zeros(len(object_list), dtype=torch.int64, device=device)
    comm.recv(sizes, src, False, timeout=timeout)
    data = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=device)
    comm.recv(data, src, False, timeout=timeout)
    object_list[:] = [_load(part, weights_only) for part in _split(data, sizes)]


def broadcast_object_list(
    comm: Any, object_list: list[Any], root: int, timeout: timedelta | None = None, weights_only: bool = True
) -> None:
    """Fills every rank's object_list with the root's; all are as long."""
    device = comm.get_device()
    at_root = comm.get_rank() == root
    tensors = [_dump(one, device) for one in object_list] if at_root else []
    sizes = _sizes(tensors, device) if at_root else torch.zeros(len(object_list), dtype=torch.int64, device=device)
    comm.broadcast(sizes, root, False, timeout=timeout)
    data = torch.cat(tensors) if at_root else torch.empty(int(sizes.sum()), dtype=torch.uint8, device=device)
    comm.broadcast(data, root, False, timeout=timeout)
    if not at_root:
        object_list[:] = [_load(part, weights_only) for part in _split(data, sizes)]


def scatter_object_list(
    comm: Any,
    root: int,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Puts this rank's object of the root's list into scatter_object_output_list[0]."""
    device = comm.get_device()
    rank, size = comm.get_rank(), comm.get_size()
    tensors: list[torch.Tensor] = []
    if rank == root:
        _need(scatter_object_input_list, size, "scatter_object_input_list")
        tensors = [_dump(one, device) for one in scatter_object_input_list]
    sizes = _sizes(tensors, device) if rank == root else torch.zeros(size, dtype=torch.int64, device=device)
    comm.broadcast(sizes, root, False, timeout=timeout)
    mine = int(sizes[rank])
    received = torch.empty(mine, dtype=torch.uint8, device=device)
    given = torch.cat(tensors) if rank == root else torch.empty(0, dtype=torch.uint8, device=device)
    input_splits = sizes.tolist() if rank == root else [0] * size
    output_splits = [mine if each == root else 0 for each in range(size)]
    comm.all_to_all_v_single(received, given, output_splits, input_splits, False, timeout=timeout)
    scatter_object_output_list[0] = _load(received, weights_only)

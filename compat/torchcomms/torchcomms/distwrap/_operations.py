"""torch.distributed's operations: by the group's communicator where torchcomms is used, else by torch.distributed.

torch.distributed's functions are taken when this is imported: init_process_group replaces them by ones that refuse.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from .. import objcol
from .._comms import ReduceOp
from . import utils
from ._groups import BLOCKED
from .utils import any_comm, get_group, get_torchcomms_instance, known, place_of, state

torch_does = SimpleNamespace(**{name: getattr(dist, name) for name in BLOCKED})
_REDUCTIONS = {getattr(dist.ReduceOp, name): getattr(ReduceOp, name) for name in "SUM PRODUCT MIN MAX BAND BOR BXOR AVG".split()}


def reduction(op: Any) -> Any:
    if op in state.premul:
        return state.premul[op]
    if op not in _REDUCTIONS:
        raise ValueError(f"unsupported ReduceOp: {op}")
    return _REDUCTIONS[op]


def _make_nccl_premul_sum(factor: Any) -> Any:
    op = dist._make_nccl_premul_sum(factor)
    if state.use_torchcomms:
        state.premul[op] = ReduceOp.PREMUL_SUM(factor)
    return op


def _comm(group: Any, tensor: torch.Tensor | None = None) -> tuple[Any, Any]:
    """The group, and its communicator, None where torch.distributed does it."""
    group = get_group(group)
    known(group)
    if not state.use_torchcomms:
        return group, None
    return group, any_comm(group) if tensor is None else get_torchcomms_instance(group, tensor=tensor)


def _ended(work: Any, async_op: bool) -> Any:
    return work if async_op else None


def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
    group, comm = _comm(group, tensor)
    if comm is None:
        return torch_does.all_reduce(tensor, op, group, async_op)
    return _ended(comm.all_reduce(tensor, reduction(op), async_op), async_op)


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    group, comm = _comm(group, tensor)
    if comm is None:
        return torch_does.broadcast(tensor, src=src, group=group, async_op=async_op, group_src=group_src)
    return _ended(comm.broadcast(tensor, place_of(group, src, group_src, "src"), async_op), async_op)


def reduce(tensor, dst=None, op=dist.ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    group, comm = _comm(group, tensor)
    if comm is None:
        return torch_does.reduce(tensor, dst=dst, op=op, group=group, async_op=async_op, group_dst=group_dst)
    return _ended(comm.reduce(tensor, place_of(group, dst, group_dst, "dst"), reduction(op), async_op), async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    group, comm = _comm(group, tensor)
    uneven = len({one.numel() for one in tensor_list}) > 1
    if comm is not None:
        gather = comm.all_gather_v if uneven else comm.all_gather
        return _ended(gather(tensor_list, tensor, async_op), async_op)
    if uneven and _is_gloo(group, tensor):
        return _exchange(tensor_list, [tensor] * len(tensor_list), group, async_op)
    return torch_does.all_gather(tensor_list, tensor, group, async_op)


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    group, comm = _comm(group, input_tensor)
    if comm is None:
        return torch_does.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
    return _ended(comm.all_gather_single(output_tensor, input_tensor, async_op), async_op)


def reduce_scatter(output, input_list, op=dist.ReduceOp.SUM, group=None, async_op=False):
    group, comm = _comm(group, output)
    if comm is None:
        return torch_does.reduce_scatter(output, input_list, op, group, async_op)
    uneven = len({one.numel() for one in input_list}) > 1
    scatter = comm.reduce_scatter_v if uneven else comm.reduce_scatter
    return _ended(scatter(output, input_list, reduction(op), async_op), async_op)


def reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
    group, comm = _comm(group, output)
    if comm is None:
        return torch_does.reduce_scatter_tensor(output, input, op, group, async_op)
    return _ended(comm.reduce_scatter_single(output, input, reduction(op), async_op), async_op)


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    group, comm = _comm(group, input_tensor_list[0])
    if comm is not None:
        return _ended(comm.all_to_all(output_tensor_list, input_tensor_list, async_op), async_op)
    if _is_gloo(group, input_tensor_list[0]):
        return _exchange(output_tensor_list, input_tensor_list, group, async_op)
    return torch_does.all_to_all(output_tensor_list, input_tensor_list, group, async_op)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    group, comm = _comm(group, input)
    if comm is None:
        return torch_does.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, async_op)
    if output_split_sizes is None and input_split_sizes is None:
        return _ended(comm.all_to_all_single(output, input, async_op), async_op)
    size = comm.get_size()
    outputs = output_split_sizes or [output.shape[0] // size] * size
    inputs = input_split_sizes or [input.shape[0] // size] * size
    return _ended(comm.all_to_all_v_single(output, input, outputs, inputs, async_op), async_op)


def scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    group, comm = _comm(group, tensor)
    if comm is None:
        return torch_does.scatter(tensor, scatter_list, src=src, group=group, async_op=async_op, group_src=group_src)
    return _ended(comm.scatter(tensor, scatter_list or [], place_of(group, src, group_src, "src"), async_op), async_op)


def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    group, comm = _comm(group, tensor)
    if comm is None:
        return torch_does.gather(tensor, gather_list, dst=dst, group=group, async_op=async_op, group_dst=group_dst)
    return _ended(comm.gather(gather_list or [], tensor, place_of(group, dst, group_dst, "dst"), async_op), async_op)


def barrier(group=None, async_op=False, device_ids=None):
    group, comm = _comm(group)
    if comm is None:
        return torch_does.barrier(group, async_op, device_ids)
    return _ended(comm.barrier(async_op), async_op)


# ---- between two ranks. torchcomms has no tags: messages between two ranks keep their order.


def send(tensor, dst=None, group=None, tag=0, group_dst=None) -> None:
    group, comm = _comm(group, tensor)
    if comm is None:
        torch_does.send(tensor, dst=dst, group=group, tag=tag, group_dst=group_dst)
    else:
        comm.send(tensor, place_of(group, dst, group_dst, "dst"), False)


def recv(tensor, src=None, group=None, tag=0, group_src=None) -> int:
    group, comm = _comm(group, tensor)
    if comm is None:
        return torch_does.recv(tensor, src=src, group=group, tag=tag, group_src=group_src)
    place = place_of(group, src, group_src, "src")
    comm.recv(tensor, place, False)
    return known(group).ranks[place]


def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
    group, comm = _comm(group, tensor)
    if comm is None:
        return torch_does.isend(tensor, dst=dst, group=group, tag=tag, group_dst=group_dst)
    return comm.send(tensor, place_of(group, dst, group_dst, "dst"), True)


def irecv(tensor, src=None, group=None, tag=0, group_src=None):
    group, comm = _comm(group, tensor)
    if comm is None:
        return torch_does.irecv(tensor, src=src, group=group, tag=tag, group_src=group_src)
    return comm.recv(tensor, place_of(group, src, group_src, "src"), True)


class P2POp:
    """torch.distributed's P2POp, of distwrap's isend and irecv too."""

    def __init__(self, op, tensor, peer=None, group=None, tag=0, group_peer=None) -> None:
        made = {isend: torch_does.isend, irecv: torch_does.irecv}.get(op, op)
        self._p2p_op = dist.P2POp(made, tensor, peer, group, tag, group_peer)

    op = property(lambda self: self._p2p_op.op)
    tensor = property(lambda self: self._p2p_op.tensor)
    group = property(lambda self: self._p2p_op.group)
    peer = property(lambda self: self._p2p_op.peer)
    tag = property(lambda self: self._p2p_op.tag)
    group_peer = property(lambda self: self._p2p_op.group_peer)

    def __repr__(self) -> str:
        return repr(self._p2p_op)


def batch_isend_irecv(p2p_op_list):
    """One work for each; they can't wait for one another."""
    plain = [getattr(op, "_p2p_op", op) for op in p2p_op_list]
    if not state.use_torchcomms:
        return torch_does.batch_isend_irecv(plain)
    works = []
    for op in plain:
        group, comm = _comm(op.group, op.tensor)
        place = place_of(group, op.peer if op.group_peer is None else None, op.group_peer, "peer")
        if op.op not in (torch_does.isend, torch_does.irecv):
            raise ValueError(f"a batch is of isend and irecv, not of {op.op}")
        works.append((comm.send if op.op is torch_does.isend else comm.recv)(op.tensor, place, True))
    return works


# ---- objects


def all_gather_object(object_list, obj, group=None) -> None:
    group, comm = _comm(group)
    if comm is None:
        torch_does.all_gather_object(object_list, obj, group)
    else:
        objcol.all_gather_object(comm, object_list, obj)


def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None) -> None:
    group, comm = _comm(group)
    if comm is None:
        torch_does.gather_object(obj, object_gather_list, dst=dst, group=group, group_dst=group_dst)
    else:
        root = place_of(group, dst, group_dst, "dst")
        objcol.gather_object(comm, obj, root=root, object_gather_list=object_gather_list)


def scatter_object_list(
    scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None
) -> None:
    group, comm = _comm(group)
    lists = (scatter_object_output_list, scatter_object_input_list)
    if comm is None:
        torch_does.scatter_object_list(*lists, src=src, group=group, group_src=group_src)
        return
    objcol.scatter_object_list(
        comm,
        root=place_of(group, src, group_src, "src"),
        scatter_object_output_list=lists[0],
        scatter_object_input_list=lists[1],
    )


def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None) -> None:
    group, comm = _comm(group)
    if comm is None:
        torch_does.broadcast_object_list(object_list, src=src, group=group, device=device, group_src=group_src)
    else:
        objcol.broadcast_object_list(comm, object_list, root=place_of(group, src, group_src, "src"))


# ---- beyond torch.distributed


def get_mem_allocator(group, device) -> Any:
    group = get_group(group)
    if state.use_torchcomms:
        return get_torchcomms_instance(group, device_type=device.type).mem_allocator
    return group._get_backend(device).mem_allocator


def register_mem_pool(group, device, pool) -> None:
    """Communicators look after their own memory: nothing to do for them."""
    if not state.use_torchcomms:
        get_group(group)._get_backend(device).register_mem_pool(pool)


def new_window(group=None, backend=None) -> Any:
    group, comm = _comm(group)
    if comm is None:
        raise AssertionError("windows need torchcomms: init_process_group(.., use_torchcomms=True)")
    if backend is not None:
        comm = get_torchcomms_instance(group, device_type=next(iter(utils.parse_backend_string(backend))))
    return comm.new_window()


def reduce_scatter_quantized(output, input, op, seed, group=None, async_op=False) -> Any:
    """Only ncclx has it."""
    group, comm = _comm(group, output)
    if comm is None:
        raise AssertionError("reduce_scatter_quantized needs torchcomms: init_process_group(.., use_torchcomms=True)")
    raise AssertionError(f"reduce_scatter_quantized requires ncclx backend, got {comm.get_backend()}")


# ---- what gloo lacks: parts of different sizes to and from everyone


def _is_gloo(group, tensor) -> bool:
    return known(group).backends.get(tensor.device.type) == "gloo"


def _exchange(outputs, inputs, group, async_op):
    me = dist.get_rank(group)
    outputs[me].copy_(inputs[me])
    works = []
    for other in range(dist.get_world_size(group)):
        if other != me:
            works.append(torch_does.irecv(outputs[other], group=group, group_src=other))
            works.append(torch_does.isend(inputs[other].contiguous(), group=group, group_dst=other))
    for work in works[:-1] if async_op else works:
        work.wait()
    return works[-1] if async_op and works else None

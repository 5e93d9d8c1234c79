"""torch.distributed's functions over communicators: programs change an import, and say use_torchcomms=True.

With it, groups are split rather than made (split_group), messages between two ranks have no tags and keep their order, and
torch.distributed's own operations refuse.
"""

import torch.distributed as _dist
from torch.distributed import (
    GroupMember,
    HashStore,
    ProcessGroup,
    ReduceOp,
    Store,
    Work,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_available,
    is_initialized,
)

from ._groups import destroy_process_group, init_process_group, new_group, split_group
from ._operations import (
    P2POp,
    _make_nccl_premul_sum,
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    broadcast_object_list,
    gather,
    gather_object,
    get_mem_allocator,
    irecv,
    isend,
    new_window,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_quantized,
    reduce_scatter_tensor,
    register_mem_pool,
    scatter,
    scatter_object_list,
    send,
)

# These exist if torch was built with them.
ProcessGroupGloo = getattr(_dist, "ProcessGroupGloo", None)
ProcessGroupNCCL = getattr(_dist, "ProcessGroupNCCL", None)

__all__ = [
    *("GroupMember", "HashStore", "P2POp", "ProcessGroup", "ProcessGroupGloo", "ProcessGroupNCCL", "ReduceOp", "Store"),
    *("Work", "_make_nccl_premul_sum", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce"),
    *("all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list"),
    *("destroy_process_group", "gather", "gather_object", "get_mem_allocator", "get_process_group_ranks", "get_rank"),
    *("get_world_size", "group", "init_process_group", "irecv", "is_available", "is_initialized", "isend", "new_group"),
    *("new_window", "recv", "reduce", "reduce_scatter", "reduce_scatter_quantized", "reduce_scatter_tensor"),
    *("register_mem_pool", "scatter", "scatter_object_list", "send", "split_group"),
]

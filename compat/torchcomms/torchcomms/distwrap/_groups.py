"""Making, splitting and ending process groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._comms import new_comm
from .utils import Known, get_group, get_rank_and_world_size, hints_of, known, name_for_torch, parse_backend_string, state

# Functions of torch.distributed that must not be called beside the communicators that do the work.
BLOCKED = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "broadcast", "all_reduce", "reduce", "barrier")
BLOCKED += ("all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor")
BLOCKED += ("all_to_all", "all_to_all_single", "all_gather_object", "gather_object", "scatter_object_list")
BLOCKED += ("broadcast_object_list",)


def _refuse(name: str) -> Any:
    def refused(*arguments: Any, **named: Any) -> None:
        raise NotImplementedError(f"torch.distributed.{name} is turned off: torchcomms.distwrap.{name} does it")

    return refused


@contextlib.contextmanager
def _as_rank(rank: int, world_size: int) -> Iterator[None]:
    """Communicators that are made meanwhile have this rank, whatever the environment says."""
    told = {"TORCHCOMM_RANK": str(rank), "TORCHCOMM_SIZE": str(world_size)}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: dist.Store | None = None,
    group_name: str = "",
    pg_options: Any | None = None,
    device_id: torch.device | int | None = None,
    use_torchcomms: bool = False,
) -> None:
    """As torch.distributed's; with `use_torchcomms`, distwrap's operations go to a communicator for each device."""
    if backend is None:
        raise ValueError("backend must be specified")
    state.use_torchcomms = use_torchcomms
    rank, world_size = get_rank_and_world_size(rank, world_size)
    if use_torchcomms:
        device_id = None
        if store is None:  # one for torch and for us: the port is there once
            host, port = os.environ.get("MASTER_ADDR", "localhost"), int(os.environ.get("MASTER_PORT", "29500"))
            shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            store = dist.TCPStore(host, port, world_size, is_master=rank == 0 and not shared, wait_for_workers=not shared)
    state.eager = device_id is not None
    backends = parse_backend_string(backend)
    dist.init_process_group(
        backend=name_for_torch(backends),
        init_method=init_method,
        timeout=timeout,
        world_size=world_size,
        rank=rank,
        store=store,
        group_name=group_name,
        pg_options=pg_options,
        device_id=device_id,
    )
    world = Known(list(range(world_size)), backends, store=store)
    state.groups[get_group(None)] = world
    if not use_torchcomms:
        return
    for name in BLOCKED:
        setattr(dist, name, _refuse(name))
    for device, name in backends.items():
        comm_name = group_name or f"default_torchcomm_{name}"
        with _as_rank(rank, world_size):
            world.comms[device] = new_comm(name, torch.device(device), name=comm_name, store=store)


def new_group(
    ranks: list[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: torch.device | None = None,
) -> dist.ProcessGroup:
    """As torch.distributed's, for which a backend must be named; communicators are split instead."""
    known(None)
    if state.use_torchcomms:
        raise AssertionError("new_group is not supported with torchcomms: use split_group")
    if backend is None:
        raise ValueError("backend must be specified")
    ranks = list(range(dist.get_world_size())) if ranks is None else ranks
    backends = parse_backend_string(backend)
    made = dist.new_group(
        ranks=ranks,
        timeout=timeout,
        backend=name_for_torch(backends),
        pg_options=pg_options,
        use_local_synchronization=use_local_synchronization,
        group_desc=group_desc,
        device_id=device_id,
    )
    state.groups[made] = Known(list(ranks), backends)
    return made


def split_group(
    parent_pg: dist.ProcessGroup | None = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> dist.ProcessGroup | None:
    """Every rank of the parent calls it, with the parent's ranks of every group."""
    parent = get_group(parent_pg)
    before = known(parent)
    if split_ranks is None:
        split_ranks = [list(range(dist.get_world_size(parent)))]
    me = dist.get_rank(parent)
    mine = next((ranks for ranks in split_ranks if me in ranks), None)
    if mine is None:
        raise ValueError(f"rank {me} is in none of the groups {split_ranks}")
    backends = parse_backend_string(backend) if backend is not None else before.backends
    if state.use_torchcomms:
        # torch's group only names it: nothing is ever sent through it, so others need not take part.
        made = dist.new_group(ranks=mine, pg_options=pg_options, group_desc=group_desc, use_local_synchronization=True)
        after = Known(list(mine), backends)
        for device, comm in before.comms.items():
            if device in backends:
                after.comms[device] = comm.split(mine, name=group_desc or "", hints=hints_of(pg_options) or None)
    else:
        made = _split_in_torch(parent, mine, split_ranks, timeout, pg_options, group_desc, backends)
        after = Known(list(mine), backends)
    state.groups[made] = after
    return made


def _split_in_torch(parent, mine, split_ranks, timeout, pg_options, group_desc, backends) -> dist.ProcessGroup:
    if state.eager and "gloo" not in backends.values():
        return dist.split_group(parent, split_ranks, timeout, pg_options, group_desc)
    # Callers may know of their own group only: they tell one another, and then all make all of them.
    told: list[Any] = [None] * dist.get_world_size(parent)
    dist.all_gather_object(told, mine, group=parent)
    made = None
    for ranks in sorted({tuple(ranks) for ranks in told}):
        group = dist.new_group(list(ranks), timeout=timeout, pg_options=pg_options, group_desc=group_desc)
        if list(ranks) == list(mine):
            made = group
    return made


def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
    group = get_group(group)
    ended = state.groups.pop(group, None)
    with contextlib.ExitStack() as closing:  # all of it, also if one raises
        closing.callback(dist.destroy_process_group, group)
        for comm in ended.comms.values() if ended is not None else ():
            closing.callback(comm.finalize)

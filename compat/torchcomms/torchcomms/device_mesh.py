"""DeviceMesh over communicators: each dimension of the mesh is one."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _register_process_group, _world

from ._comms import TorchComm, _BackendWrapper, new_comm

_BACKEND = "torchcomm"


def _create_torchcomm_process_group(
    comm: TorchComm,
    group_name: str,
    backend_str: str = _BACKEND,
    global_ranks_mapping: dict[int, int] | None = None,
) -> dist.ProcessGroup:
    """A process group that torch.distributed knows by its name, and whose work the communicator does.

    `global_ranks_mapping`: global rank to rank in the group; without it they are the same.
    """
    if backend_str.upper() not in dist.Backend.backend_list and not hasattr(dist.Backend, backend_str.upper()):
        dist.Backend.register_backend(backend_str, new_comm)
    store = dist.HashStore()  # asked by nobody: the communicator has formed already
    group = dist.ProcessGroup(store, comm.get_rank(), comm.get_size())
    group._register_backend(comm.get_device(), dist.ProcessGroup.BackendType.CUSTOM, _BackendWrapper(comm))
    group._set_group_name(group_name)

    _world.pg_map[group] = (backend_str, store)
    _world.pg_names[group] = group_name
    _world.pg_backend_config[group] = str(dist.BackendConfig(dist.Backend(backend_str)))
    _world.pg_group_ranks[group] = global_ranks_mapping or {rank: rank for rank in range(comm.get_size())}
    tag = f"ptd:{group_name}"
    _world.pg_to_tag[group] = tag
    _world.tags_to_pg.setdefault(tag, []).append(group)
    _register_process_group(group_name, group)
    return group


def init_device_mesh(
    mesh_dim_comms: tuple[TorchComm, ...],
    mesh_dim_names: tuple[str, ...],
    _global_comm: TorchComm | None = None,
) -> dist.DeviceMesh:
    """A mesh with a dimension for each communicator; of several, `_global_comm` is the one of all ranks."""
    if _global_comm is None and len(mesh_dim_comms) != 1:
        raise RuntimeError(f"a mesh of {len(mesh_dim_comms)} communicators needs that of all ranks: give _global_comm")
    shape = [comm.get_size() for comm in mesh_dim_comms]
    mesh = torch.arange(math.prod(shape), dtype=torch.int, device="cpu").view(shape)
    place = [comm.get_rank() for comm in mesh_dim_comms]
    rank = int(mesh[tuple(place)])
    world = _create_torchcomm_process_group(_global_comm, _global_comm.get_name()) if _global_comm is not None else None
    for dimension, (comm, name) in enumerate(zip(mesh_dim_comms, mesh_dim_names, strict=True)):
        line = mesh[tuple(slice(None) if i == dimension else at for i, at in enumerate(place))]
        ranks = {int(member): index for index, member in enumerate(line)}
        group = _create_torchcomm_process_group(comm, name, global_ranks_mapping=ranks)
        world = world or group
    dist.distributed_c10d.GroupMember.WORLD = world

    device_type = mesh_dim_comms[0].get_device().type
    made = dist.DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, _init_backend=False, _rank=rank)
    made._dim_group_names = list(mesh_dim_names)
    return made


def _flatten_with_comm(
    mesh: dist.DeviceMesh, mesh_dim_name: str, comm: TorchComm, global_ranks: list[int], layout: Any
) -> dist.DeviceMesh:
    """Some dimensions of a mesh as one, whose work `comm` does."""
    ranks = {global_ranks[rank]: rank for rank in range(comm.get_size())}
    _create_torchcomm_process_group(comm, mesh_dim_name, global_ranks_mapping=ranks)
    if hasattr(layout, "coalesce"):  # torch before 2.13
        flat = layout.coalesce()
    else:
        from torch.distributed._mesh_layout import _MeshLayout

        flat = _MeshLayout([layout.collapse()])
    how: dict[str, Any] = {"mesh": torch.tensor(global_ranks, device="cpu")}
    if hasattr(mesh, "_rank_map"):
        how = {"_rank_map": mesh._rank_map, "_root_mesh": mesh}
    made = dist.DeviceMesh(
        device_type=comm.get_device(),
        mesh_dim_names=(mesh_dim_name,),
        _init_backend=False,
        _rank=comm.get_rank(),
        _layout=flat,
        **how,
    )
    made._dim_group_names = [mesh_dim_name]
    root = mesh._get_root_mesh()
    made._root_mesh = root
    root._flatten_mapping[mesh_dim_name] = made
    return made

"""The state that distwrap keeps of each process group, and the names of backends."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

# The device that a backend named without one is for.
DEVICES = {"gloo": "cpu", "towline": "cpu", "mccl": "cpu"}
DEVICES |= {"nccl": "cuda", "ncclx": "cuda", "rccl": "cuda", "rcclx": "cuda", "hccl": "mtia"}
# By which names torch.distributed has those that only torchcomms has.
TORCH_NAMES = {"ncclx": "nccl", "rcclx": "rccl", "mccl": "gloo"}
RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PMI_RANK", "PMI_SIZE"),
)


@dataclass
class Known:
    """A process group that was made through distwrap."""

    ranks: list[int]  # global, in the group's order
    backends: dict[str, str]  # by device type
    comms: dict[str, Any] = field(default_factory=dict)  # by device type; empty: torch.distributed does the work
    store: Any = None

    def __post_init__(self) -> None:
        self.places = {rank: place for place, rank in enumerate(self.ranks)}


@dataclass
class State:
    groups: dict[dist.ProcessGroup, Known] = field(default_factory=dict)
    use_torchcomms: bool = False
    eager: bool = False  # torch.distributed was told its device
    premul: dict[Any, Any] = field(default_factory=dict)  # torch's reduction to ours


state = State()


def torchcomms_is_enabled() -> bool:
    return state.use_torchcomms


def get_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group, or that of all ranks."""
    if group is None:
        group = dist.group.WORLD
    if group is None:
        raise AssertionError("there is no process group: call init_process_group first")
    return group


def known(group: dist.ProcessGroup | None) -> Known:
    group = get_group(group)
    if group not in state.groups:
        raise AssertionError(f"process group {group} was not made by distwrap")
    return state.groups[group]


def get_torchcomms_instance(
    group: dist.ProcessGroup, device_type: str | None = None, tensor: torch.Tensor | None = None
) -> Any:
    """The communicator of a group for a device, or for that of a tensor."""
    if device_type is None:
        if tensor is None:
            raise ValueError("neither a device's type nor a tensor is given")
        device_type = tensor.device.type
    comms = known(group).comms
    if device_type not in comms:
        raise ValueError(f"the group has no communicator for '{device_type}', only for {', '.join(sorted(comms)) or 'none'}")
    return comms[device_type]


def any_comm(group: dist.ProcessGroup) -> Any:
    """For what has no tensor."""
    comms = known(group).comms
    if not comms:
        raise AssertionError(f"process group {group} has no communicator")
    return next(iter(comms.values()))


def place_of(group: dist.ProcessGroup, rank: int | None, place: int | None, what: str) -> int:
    """The rank within the group, of which the caller gave either that or the global rank."""
    if rank is not None and place is not None:
        raise ValueError(f"both {what} and group_{what} are given: one is enough")
    if place is not None:
        return place
    if rank is None:
        raise ValueError(f"{what} or group_{what} is needed: torchcomms knows no wildcards")
    places = known(group).places
    if rank not in places:
        raise ValueError(f"rank {rank} is not in the group of {list(places)}")
    return places[rank]


def parse_backend_string(text: str) -> dict[str, str]:
    """ "cpu:gloo,cuda:nccl", or one name with the device it is for, by device type."""
    if ":" not in text:
        if text not in DEVICES:
            raise ValueError(f"unknown backend '{text}' without a device; known are {', '.join(sorted(DEVICES))}")
        return {DEVICES[text]: text}
    backends: dict[str, str] = {}
    for part in text.split(","):
        device, colon, name = (piece.strip() for piece in part.partition(":"))
        if not colon or not name or ":" in name:
            raise ValueError(f"'{part}' in '{text}' is not DEVICE:BACKEND")
        device = torch.device(device).type
        if device in backends:
            raise ValueError(f"'{text}' gives two backends for {device}")
        backends[device] = name
    return backends


def format_backend_string(backends: dict[str, str]) -> str:
    return ",".join(f"{device}:{name}" for device, name in backends.items())


def name_for_torch(backends: dict[str, str]) -> str:
    return format_backend_string({device: TORCH_NAMES.get(name, name) for device, name in backends.items()})


def get_rank_and_world_size(rank: int, world_size: int) -> tuple[int, int]:
    """The arguments if they are given, else the values in the environment."""

    def found(value: int, variables: list[str], what: str) -> int:
        if value != -1:
            return value
        for variable in variables:
            if variable in os.environ:
                return int(os.environ[variable])
        raise AssertionError(f"no {what}: give it, or set one of {', '.join(variables)}")

    ranks, sizes = zip(*RANK_VARIABLES)
    return found(rank, list(ranks), "rank"), found(world_size, list(sizes), "world_size")


def hints_of(options: Any) -> dict[str, str]:
    """Options of a process group as hints: its plain attributes, and those of its `config`."""
    hints: dict[str, str] = {}
    for source in (getattr(options, "config", None), options):
        for name in dir(source) if source is not None else []:
            try:
                value = getattr(source, name)
            except Exception:  # an attribute that can't be read is no hint
                continue
            if not name.startswith("_") and name != "config" and not callable(value):
                hints[name] = str(value)
    return hints

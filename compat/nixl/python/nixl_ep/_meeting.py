"""How ranks of a group tell one another where they are."""

from __future__ import annotations

import os
import time
from datetime import timedelta

__all__ = ["CommMeeting", "StoreMeeting", "meeting_of"]


def _key(rank: int) -> str:
    return f"NIXL_EP/{rank}"


class StoreMeeting:
    """By a torch Store. Ranks come and go at any time."""

    def __init__(self, store) -> None:
        self._store = store

    def publish(self, rank: int, description: bytes) -> None:
        self._store.set(_key(rank), description)

    def fetch(self, rank: int, seconds: float) -> bytes:
        """Waits for the rank's description. b"": the rank has just taken it away."""
        self._store.wait([_key(rank)], timedelta(seconds=max(seconds, 0.001)))
        return bytes(self._store.get(_key(rank)))

    def withdraw(self, rank: int) -> None:
        self._store.delete_key(_key(rank))

    def anyone(self, again: bool) -> bool:
        """Does a rank have to publish again? Only this one is asked."""
        return again


class CommMeeting:
    """By an mpi4py communicator: all its ranks connect at the same time, as often as one another."""

    def __init__(self, comm) -> None:
        self._comm = comm
        self._all: dict[int, bytes] = {}

    def publish(self, rank: int, description: bytes) -> None:
        self._all = dict(self._comm.allgather((rank, description)))

    def fetch(self, rank: int, _seconds: float) -> bytes:
        if rank not in self._all:
            raise ValueError(f"nixl_ep: rank {rank} is no rank of the communicator, which has {sorted(self._all)}")
        return self._all[rank]

    def withdraw(self, rank: int) -> None:
        pass

    def anyone(self, again: bool) -> bool:
        return any(self._comm.allgather(again))


def meeting_of(tcp_store_group, group, comm) -> StoreMeeting | CommMeeting:
    """The one that the application gave: a store, torch's process group, an MPI communicator, or etcd by NIXL's environment."""
    if tcp_store_group is not None:
        return StoreMeeting(tcp_store_group)
    if group is not None:
        return StoreMeeting(group.get_group_store())
    if comm is not None:
        return CommMeeting(comm)
    if os.environ.get("NIXL_ETCD_ENDPOINTS"):
        from ._etcd import EtcdMeeting

        return EtcdMeeting(os.environ["NIXL_ETCD_ENDPOINTS"], os.environ.get("NIXL_ETCD_NAMESPACE") or "/nixl/agents")
    raise ValueError("nixl_ep: ranks can't meet: give tcp_store_group, group or comm, or set NIXL_ETCD_ENDPOINTS")


def pause() -> None:
    """Between two looks at what another rank has yet to do."""
    time.sleep(0.05)

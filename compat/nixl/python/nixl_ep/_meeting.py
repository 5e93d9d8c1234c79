"""How ranks of a group tell one another where they are."""

from __future__ import annotations

import os
import time
from datetime import timedelta

__all__ = ["CommMeeting", "StoreMeeting", "meeting_of"]


def key_of(mode: str, rank: int) -> str:
    """The key of a rank's description. An engine may have one Buffer for each mode on the same store."""
    return f"NIXL_EP/{mode}/{rank}"


class StoreMeeting:
    """By a torch Store. Ranks come and go at any time."""

    changes = True  # a description may be of a rank that was here before

    def __init__(self, store, mode: str) -> None:
        self._store = store
        self._mode = mode

    def publish(self, rank: int, description: bytes) -> None:
        self._store.set(key_of(self._mode, rank), description)

    def fetch(self, rank: int, seconds: float) -> bytes:
        """Waits for the rank's description. b"": the rank has just taken it away."""
        key = key_of(self._mode, rank)
        self._store.wait([key], timedelta(seconds=max(seconds, 0.001)))
        return bytes(self._store.get(key))

    def withdraw(self, rank: int) -> None:
        self._store.delete_key(key_of(self._mode, rank))

    def anyone(self, again: bool, failure: Exception | None) -> bool:
        """Does a rank have to publish again? Only this one is asked. Raises its failure."""
        if failure is not None:
            raise failure
        return again


class CommMeeting:
    """By an mpi4py communicator: all its ranks connect at the same time, as often as one another."""

    changes = False

    def __init__(self, comm) -> None:
        self._comm = comm
        self._rank = 0
        self._all: dict[int, bytes] = {}

    def publish(self, rank: int, description: bytes) -> None:
        self._rank = rank
        self._all = dict(self._comm.allgather((rank, description)))

    def fetch(self, rank: int, _seconds: float) -> bytes:
        if rank not in self._all:
            raise ValueError(f"nixl_ep: rank {rank} is no rank of the communicator, which has {sorted(self._all)}")
        return self._all[rank]

    def withdraw(self, rank: int) -> None:
        pass

    def anyone(self, again: bool, failure: Exception | None) -> bool:
        """The same of all ranks. Where one failed, all raise, so that none waits for it."""
        told = self._comm.allgather((self._rank, again, None if failure is None else str(failure)))
        if failure is not None:
            raise failure
        failed = [f"rank {rank}: {text}" for rank, _, text in told if text is not None]
        if failed:
            raise RuntimeError("nixl_ep: ranks could not connect, and this one gives up with them: " + "; ".join(failed))
        return any(again for _, again, _ in told)


def _store_of(group):
    """The store of a process group. torch before 2.9 has no get_group_store(), and a group made in Python may give none."""
    store = group.get_group_store() if hasattr(group, "get_group_store") else None
    if store is None:
        from torch.distributed import distributed_c10d

        store = distributed_c10d._get_process_group_store(group)
    return store


def meeting_of(tcp_store_group, group, comm, mode: str) -> StoreMeeting | CommMeeting:
    """The one that the application gave: a store, torch's process group, an MPI communicator, or etcd by NIXL's environment. mode: ranks of
    this mode alone meet."""
    if tcp_store_group is not None:
        return StoreMeeting(tcp_store_group, mode)
    if group is not None:
        return StoreMeeting(_store_of(group), mode)
    if comm is not None:
        return CommMeeting(comm)
    if os.environ.get("NIXL_ETCD_ENDPOINTS"):
        from ._etcd import EtcdMeeting

        return EtcdMeeting(os.environ["NIXL_ETCD_ENDPOINTS"], os.environ.get("NIXL_ETCD_NAMESPACE") or "/nixl/agents", mode)
    raise ValueError("nixl_ep: ranks can't meet: give tcp_store_group, group or comm, or set NIXL_ETCD_ENDPOINTS")


def pause() -> None:
    """Between two looks at what another rank has yet to do."""
    time.sleep(0.05)

"""Which of how many ranks this process is."""

from __future__ import annotations

import os

from towline import collectives


def rank_and_size() -> tuple[int, int]:
    """From TORCHCOMM_RANK and TORCHCOMM_SIZE, else from TOWLINE_RANK and TOWLINE_SIZE, else as launchers say.

    The first two come before all others, as in torchcomms: torch sets them while it makes a group, to this process' rank
    there. TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD names one launcher ("torchrun", "mpi", "pals", "slurm"), which is then
    asked alone.
    """
    told = [os.environ.get(name, "") for name in ("TORCHCOMM_RANK", "TORCHCOMM_SIZE")]
    if not all(told):
        return collectives.environment(os.environ.get("TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD", "auto").lower())
    try:
        rank, size = map(int, told)
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise RuntimeError(f"TORCHCOMM_RANK={told[0]} and TORCHCOMM_SIZE={told[1]} make no rank of a communicator")
    return rank, size

"""Which of how many ranks this process is."""

from __future__ import annotations

import os

from towline import collectives


def rank_and_size() -> tuple[int, int]:
    """From TOWLINE_RANK and TOWLINE_SIZE, else TORCHCOMM_RANK and TORCHCOMM_SIZE, else as launchers say.

    TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD names one launcher ("torchrun", "mpi", "pals", "slurm"), and then it alone
    is asked.
    """
    method = os.environ.get("TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD", "auto")
    told = [os.environ.get(name, "") for name in ("TORCHCOMM_RANK", "TORCHCOMM_SIZE")]
    ours = os.environ.get("TOWLINE_RANK") and os.environ.get("TOWLINE_SIZE")
    if method != "auto" or ours or not all(told):
        return collectives.environment(method)
    try:
        rank, size = map(int, told)
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise RuntimeError(f"TORCHCOMM_RANK={told[0]} and TORCHCOMM_SIZE={told[1]} make no rank of a communicator")
    return rank, size

"""Communicators on a GPU that two ranks share, or with TOWLINE_TEST_GPUS=all on one each. Needs one, and a torch that sees it."""

from __future__ import annotations

import multiprocessing
import os

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)
pytest.importorskip("torchcomms", reason="compat/torchcomms is not installed")

import test_gpu_model as ranks_do  # noqa: E402


def run(rank: int, folder: str) -> None:
    gpu = rank % torch.cuda.device_count() if os.environ.get("TOWLINE_TEST_GPUS") == "all" else 0
    torch.cuda.set_device(gpu)
    ranks_do.GPU = torch.device("cuda", gpu)
    torch.set_default_device("cuda")
    ranks_do.operations(rank, folder)
    torch.cuda.synchronize()


def test_ranks(tmp_path):
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run, args=(rank, str(tmp_path)), daemon=True) for rank in range(ranks_do.SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * ranks_do.SIZE

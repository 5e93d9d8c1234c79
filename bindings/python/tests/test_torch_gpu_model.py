"""torch.distributed with backend="towline" on GPUs, which are made of host memory here: the rules of streams, without a GPU."""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import shutil
import subprocess
import sys
import threading
import types
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/torch-cpu makes an environment with it")

import gpu_model  # noqa: E402
import torch.distributed._symmetric_memory as symm_mem  # noqa: E402
import torch_ranks as ranks_do  # noqa: E402
import torch_symmetric_ranks as symmetric_do  # noqa: E402
import towline  # noqa: E402
from collective_ranks import TIMEOUT, Ranks  # noqa: E402

SIZE = 4
pytestmark = pytest.mark.skipif(gpu_model.find() is None, reason="no library of GPU models: build the tests of preset ci")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(SIZE, str(tmp_path_factory.mktemp("torch")), ranks_do.serve_on_model)
    yield ranks
    assert ranks.stop() == [0] * SIZE


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_operations_are_like_gloos(ranks, dtype):
    ranks.run(ranks_do.operations, dtype, 7)


def test_operations_on_much(ranks):
    ranks.run(ranks_do.operations, "float32", 200_003)


@pytest.mark.parametrize("what", ["uneven", "unusual_tensors", "works", "messages", "messages_together", "objects", "functional", "norm"])
def test_operations(ranks, what):
    ranks.run(getattr(ranks_do, what))


@pytest.mark.parametrize("what", ["beside_the_stream", "dropped_works", "copied_back"])
def test_streams(ranks, what):
    ranks.run(getattr(ranks_do, what))


@pytest.mark.parametrize("what", ["data_parallel", "fully_sharded", "tensor_parallel"])
def test_training(ranks, what):
    ranks.run(getattr(ranks_do, what))


def test_groups_of_some(ranks):
    assert ranks.run(ranks_do.groups) == [[2.0], [2.0, 2.0], [2.0], []]


@pytest.mark.parametrize("whole_group", ["0", "1"], ids=["backend", "process_group"])
def test_groups_of_a_job_that_is_bound_to_a_device(monkeypatch, tmp_path, whole_group):
    """As each torch takes it: before 2.14 the whole group is ours."""
    monkeypatch.setenv("TOWLINE_TEST_PROCESS_GROUP", whole_group)
    ranks = Ranks(2, str(tmp_path), ranks_do.serve_on_model)
    try:
        assert ranks.run(ranks_do.bound_to_a_device, str(tmp_path)) == [[3.0, 3.0]] * 2
    finally:
        assert ranks.stop() == [0, 0]


def test_another_backend_for_gpus_is_refused_where_the_whole_group_is_ours(monkeypatch, tmp_path):
    monkeypatch.setenv("TOWLINE_TEST_PROCESS_GROUP", "1")  # torch before 2.14
    ranks = Ranks(2, str(tmp_path), ranks_do.serve_on_model)
    try:
        told = ranks.run(ranks_do.another_backend_for_gpus)
    finally:
        assert ranks.stop() == [0, 0]
    assert all(f"torch {torch.__version__} " in one and '"cpu:towline,cuda:gloo" has no gloo for GPUs' in one for one in told), told


def test_ranks_that_disagree_are_told(ranks):
    told = ranks.run(ranks_do.disagree_on_gpus)
    assert all("ranks disagree" in one and "of 4 float32" in one and "of 3 float32" in one for one in told), told


def test_a_rank_that_does_not_come_is_named(ranks):
    told = ranks.run(ranks_do.late_on_gpus)
    assert all("rank 0 did not come" in one for one in told[1:]), told


def group_of_four(monkeypatch, communicator):
    """What a group of four ranks has on GPUs; its communicators are of that class."""
    from towline import _torch_gpu

    monkeypatch.setattr(_torch_gpu.collectives, "Communicator", communicator)
    monkeypatch.setattr(_torch_gpu.gpu, "graph", lambda index: 0)
    host = types.SimpleNamespace(rank=0, size=4, name="world", timeout=5.0, hook=lambda kind, function: None)
    return _torch_gpu.Communicators(host, None, in_pairs=True)


def test_threads_that_are_first_together_make_one_communicator(monkeypatch):
    made, both = [], threading.Barrier(2)

    class Communicator:
        def __init__(self, name, **_):
            made.append(name)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # the other thread, if it is let in

        def hook(self, kind, function):
            return None

    group = group_of_four(monkeypatch, Communicator)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for ask in (lambda _: group.of_all(0), lambda _: group.for_message(0, 2, False)[0]):
            both.reset()
            first, second = threads.map(ask, range(2))
            assert first is second
    assert made == ["world/gpu0", "world/gpu-pair-0-2"]


def test_threads_that_are_first_on_two_gpus_make_two_communicators(monkeypatch):
    names, both = {}, threading.Barrier(2)

    class Communicator:
        def __init__(self, name, config, **_):
            if config in names:
                return
            names[config] = name
            both.wait(10)  # the other thread is inside too
            if "gpu = 5" in config:
                raise towline.TimedOut("a rank does not come")

        def hook(self, kind, function):
            return None

    group = group_of_four(monkeypatch, Communicator)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        failing, other = threads.submit(group.of_all, 5), threads.submit(group.of_all, 6)
        other.result()
        with pytest.raises(towline.TimedOut):
            failing.result()
    assert sorted(names.values()) == ["world/gpu0", "world/gpu1"]
    before = names.pop("[tuning.collectives]\ngpu = 5\n")
    both = threading.Barrier(1)
    with pytest.raises(towline.TimedOut):
        group.of_all(5)
    assert names["[tuning.collectives]\ngpu = 5\n"] == before, "one that failed takes no number"


def test_a_first_operation_in_a_graph_is_refused_with_advice(monkeypatch):
    from towline import _torch_gpu

    monkeypatch.setattr(_torch_gpu.gpu, "graph", lambda index: 7)
    host = types.SimpleNamespace(rank=0, size=4, name="world", timeout=5.0)
    group = _torch_gpu.Communicators(host, None, in_pairs=True)
    for ask in (lambda: group.of_all(0), lambda: group.for_message(0, 2, False)):
        with pytest.raises(towline.InvalidArgument, match="while a stream records a graph.* on GPU 0: run one of this group before"):
            ask()


# ---- torch's symmetric memory


@pytest.fixture(scope="module")
def symmetric(tmp_path_factory):
    if shutil.which("ninja") is None or shutil.which("c++") is None:
        pytest.skip("torch compiles no extension here: ninja or a C++ compiler is missing")
    if not hasattr(symm_mem, "set_backend"):
        pytest.skip(f"torch {torch.__version__} has no other symmetric memory than its own: 2.9 does")
    from towline import torch_symmetric

    torch_symmetric._extension()  # once for all ranks
    ranks = Ranks(SIZE, str(tmp_path_factory.mktemp("symmetric")), ranks_do.serve_on_model)
    yield ranks
    assert ranks.stop() == [0] * SIZE


def test_a_torch_that_has_only_its_own_symmetric_memory_is_named(monkeypatch):
    from towline import torch_symmetric

    monkeypatch.delattr(symm_mem, "set_backend", raising=False)  # torch before 2.9
    with pytest.raises(towline.Unsupported, match=rf"torch {re.escape(torch.__version__)} .*: use torch 2.9 or later"):
        torch_symmetric._extension()


def test_symmetric_memory_of_torch(symmetric):
    symmetric.run(symmetric_do.symmetric)


def test_a_lock_that_a_killed_compiler_left_holds_up_nobody(symmetric):
    from towline import torch_symmetric

    (torch_symmetric._folder() / "lock").touch()  # until 2.14 torch waits for ever while it is there
    code = "from towline import torch_symmetric; torch_symmetric._extension()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT)


def test_symmetric_memory_that_all_ranks_freed_is_given_back(symmetric):
    assert max(symmetric.run(symmetric_do.symmetric_comes_and_goes)) <= 2


def test_ranks_of_symmetric_memory_meet_whichever_gpu_each_has(monkeypatch):
    from torch.distributed import HashStore

    from towline import torch_symmetric

    class Communicator:
        def __init__(self, name, **_):
            self.name = name

        def window(self, memory):
            return types.SimpleNamespace(memory=(self.name, memory[0]), close=lambda: None)

    monkeypatch.setattr(torch_symmetric.collectives, "Communicator", Communicator)
    monkeypatch.setattr(torch_symmetric.gpu_memory, "Table", lambda window: window)
    monkeypatch.setattr(torch_symmetric._torch_gpu, "gpu", types.SimpleNamespace(backend="none", synchronize_all=lambda index: None))
    store = HashStore()
    store.set_timeout(timedelta(seconds=5))
    nothing_in_use = types.SimpleNamespace(in_use=list)

    def rendezvous(rank: int) -> list:
        meetings = torch_symmetric._Meetings(nothing_in_use)
        # The second group of that name is of other GPUs of the same ranks.
        return [meetings.rendezvous("group", rank, 2, store, gpu, 4096, 256, 100) for gpu in (rank, 2 + rank, rank)]

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first, second = threads.map(rendezvous, range(2))
    assert first == second
    assert [name for _, (name, _) in first] == ["symmetric/group/0", "symmetric/group/1", "symmetric/group/0"]


def test_symmetric_memory_goes_only_after_the_kernels_that_use_it(monkeypatch):
    from torch.distributed import HashStore

    from towline import torch_symmetric

    done = []

    class Communicator:
        def __init__(self, **_):
            pass

        def window(self, memory):
            return types.SimpleNamespace(memory=memory, close=lambda: done.append("closed"))

    monkeypatch.setattr(torch_symmetric.collectives, "Communicator", Communicator)
    monkeypatch.setattr(torch_symmetric.gpu_memory, "Table", lambda window: window)
    waited = types.SimpleNamespace(backend="none", synchronize_all=lambda index: done.append(f"waited for GPU {index}"))
    monkeypatch.setattr(torch_symmetric._torch_gpu, "gpu", waited)
    meetings = torch_symmetric._Meetings(types.SimpleNamespace(in_use=list))
    for _ in range(2):
        meetings.rendezvous("group", 0, 1, HashStore(), 3, 4096, 256, 100)
    assert done == ["waited for GPU 3", "closed"]


def test_misuse_of_symmetric_memory_is_told(symmetric):
    for rank, told in enumerate(symmetric.run(symmetric_do.symmetric_errors)):
        assert len(told) == 4, told
        assert "was not allocated by torch.distributed._symmetric_memory.empty()" in told[0]
        assert f"ranks disagree in rendezvous: rank {rank} has {10 + rank} bytes" in told[1]
        assert "channel 64 is out of range" in told[2]
        assert f"no rank {SIZE} among {SIZE}" in told[3]


def test_a_rank_that_does_not_come_to_a_barrier_of_symmetric_memory_is_named(symmetric):
    told = symmetric.run(symmetric_do.symmetric_late)
    assert all("rank 0 did not come" in one for one in told[1:]), told

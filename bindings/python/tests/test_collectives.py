"""Communicators among processes: every operation, works, windows, hooks, mistakes and bad days."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import collective_ranks as ranks_do
import towline
from collective_ranks import Ranks
from conftest import TIMEOUT, run_script
from towline import collectives

SIZE = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(SIZE, str(tmp_path_factory.mktemp("world")))
    yield ranks
    assert ranks.stop() == [0] * SIZE


@pytest.fixture
def alone():
    with collectives.Communicator(rank=0, size=1) as communicator:
        yield communicator


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32", "int64", "uint8"])
def test_reductions_on_every_rank(ranks, dtype):
    ranks.run(ranks_do.reductions, dtype, 5)


def test_reductions_of_much(ranks):
    ranks.run(ranks_do.reductions, "float32", 300_001)


@pytest.mark.parametrize(
    "what",
    ["special_reductions", "moves", "scattered_sums", "exchanges", "messages", "works", "dropped_works", "any_type_travels"],
)
def test_operations(ranks, what):
    ranks.run(getattr(ranks_do, what))


def test_the_order_of_reductions_is_a_hint():
    with collectives.Communicator(rank=0, size=1, hints={"order": "any"}) as alone:
        assert alone.info()["details"]["order"] == "any"
    with pytest.raises(towline.InvalidArgument, match='order = "fastest".*expected rank or any'):
        collectives.Communicator(rank=0, size=1, hints={"order": "fastest"})


def test_works_can_be_awaited(ranks):
    assert ranks.run(ranks_do.awaited) == [3.0] * SIZE


def test_split(ranks):
    assert ranks.run(ranks_do.splits) == [[0, 2, "pair", 2.0], [1, 2, "pair", 2.0], []]


def test_windows(ranks):
    ranks.run(ranks_do.windows)


def test_hooks_are_told(ranks):
    for told in ranks.run(ranks_do.told_by_hooks):
        assert told == [
            ("all_reduce", "float32", 3, "max", None),
            ("all_reduce", "float32", 3, "max", towline.Status.OK),
            ("barrier", "uint8", 0, "sum", None),
        ]


def test_mistakes_raise_and_break_nothing(ranks):
    for told in ranks.run(ranks_do.mistakes):
        expected = [
            "InvalidArgument: tensor: it is not contiguous",
            "InvalidArgument: tensor: it is read-only",
            "InvalidArgument: tensor: a tensor, an array",
            "InvalidArgument: op: 'sum'",
            "Unsupported: tensor: there is no reduction",
            "InvalidArgument: premul_sum needs a factor",
            "Mismatch: output: its type",
            "Mismatch: output has 16 elements where 48 belong",
            "InvalidArgument: output: 1 tensors for 3 ranks",
            "",  # the library's own words
            "Mismatch: input_splits: they sum to 3, the tensor has 4 rows",
            "InvalidArgument: input_splits: 1 splits for 3 ranks",
            "",
            "InvalidArgument: a timeout",
        ]
        assert len(told) == len(expected)
        for case, begins in zip(told, expected):
            assert case.startswith(begins) and "nothing was raised" not in case, told


def test_ranks_that_disagree_are_all_told_the_same(ranks, tmp_path):
    told = ranks.run(ranks_do.disagree, str(tmp_path))
    assert len(set(told)) == 1 and "nothing" not in told[0], told
    assert "3" in told[0] and "4" in told[0]


def test_a_timeout_breaks_the_communicator_everywhere(ranks, tmp_path):
    told = ranks.run(ranks_do.wait_in_vain, str(tmp_path))
    assert told == ["TIMED_OUT"] * SIZE


def test_abort_reaches_everybody_and_a_new_one_forms(ranks, tmp_path):
    assert ranks.run(ranks_do.abort_others, str(tmp_path)) == [str(SIZE)] * SIZE


def test_a_killed_rank_is_noticed(tmp_path):
    ranks = Ranks(2, str(tmp_path))
    ranks.run(ranks_do.dropped_works)
    ranks.begin(ranks_do.keep_going)
    ranks.processes[1].kill()
    assert ranks.outcomes([0]) == [(True, "PEER_LOST")]
    assert ranks.stop() == [0, -signal.SIGKILL]


def test_what_is_no_rank_or_size_is_refused_by_name(alone):
    array, make = np.zeros(4), collectives.Communicator
    for call, says in (
        (lambda: make(rank=0, size=1 << 31), "size is an integer"),
        (lambda: make(rank=-1 << 40, size=1), "rank is an integer"),
        (lambda: make(rank=0, size=1, hints=[1]), "hints are a dict, not list"),
        (lambda: alone.all_reduce(array, hints=5), "hints are a dict, not int"),
        (lambda: alone.broadcast(array, 1 << 40), "root is an integer"),
        (lambda: alone.recv(array, 1 << 40), "peer is an integer"),
        (lambda: alone.split([1 << 40]), "a rank is an integer"),
        (lambda: alone.window(-1), "memory is an integer"),
    ):
        with pytest.raises(towline.InvalidArgument, match=says):
            call()
    for call in (
        lambda: make(rank=0.5, size=1),
        lambda: alone.broadcast(array, "a"),
        lambda: alone.reduce(array, "a"),
        lambda: alone.recv(array, "a"),
        lambda: alone.split("a"),
    ):
        with pytest.raises(TypeError, match="integer"):
            call()
    alone.broadcast(array, np.int64(0))


def test_a_communicator_without_time_is_refused(alone):
    for call in (
        lambda: collectives.Communicator(rank=0, size=1, timeout=0),
        lambda: alone.split([0], timeout=0),
        lambda: setattr(alone, "timeout", 0),
    ):
        with pytest.raises(towline.InvalidArgument, match="timeout is more than 0 seconds"):
            call()


def test_a_factor_that_nothing_is_multiplied_by_is_refused(alone):
    with pytest.raises(towline.InvalidArgument, match="factor: premul_sum alone"):
        alone.all_reduce(np.ones(4), "sum", factor=2.0)


def test_elements_whose_bytes_are_no_number_are_refused(alone):
    window = alone.window(64)
    for call in (
        lambda: window.put(0, 0, (4096, 1 << 62, "float32")),
        lambda: window.get(0, 0, (4096, 1 << 63, "int16")),
        lambda: alone.window((4096, 1 << 62, "float32")),
    ):
        with pytest.raises(towline.OutOfRange, match="elements are too many"):
            call()
    window.close()


def test_one_rank_alone(alone):
    array = np.arange(4.0)
    assert alone.all_reduce(array, async_op=True).wait() is None
    alone.all_gather([array], array.copy())
    assert array.tolist() == [0, 1, 2, 3]
    assert (alone.rank, alone.size, alone.backend, alone.closed) == (0, 1, "cpu", False)
    assert alone.error == (towline.Status.OK, "")
    assert alone.info()["backend"] == "cpu"
    assert alone.flight_records()["entries"]
    alone.timeout = 5
    assert alone.timeout == 5
    alone.close()
    with pytest.raises(towline.Closed):
        alone.barrier()


class OnAGpu:
    """As much of a tensor of torch's as is looked at."""

    is_cpu, device = False, "cuda:1"

    def data_ptr(self):
        raise AssertionError("its address was asked for")

    is_contiguous = numel = data_ptr


def test_tensors_of_other_devices_are_refused_and_break_nothing(alone):
    here = np.arange(2, dtype=np.float32)
    there = OnAGpu()
    for call in (
        lambda: alone.all_reduce(there),
        lambda: alone.all_reduce(here, output=there),
        lambda: alone.all_gather([there], here),
        lambda: alone.reduce_scatter(here, [there]),
        lambda: alone.all_to_all(there, here),
        lambda: alone.send(there, 0),
        lambda: alone.broadcast(there, 0, async_op=True),
    ):
        with pytest.raises(towline.Unsupported, match="is on cuda:1: .* take tensors in this host's memory"):
            call()
    assert alone.all_reduce(here) is None and here.tolist() == [0, 1]


def test_the_application_may_bring_the_store():
    class Store:
        """As little as there may be."""

        def __init__(self):
            self.values = {}

        def set(self, key, value):
            self.values[key] = value

        def get(self, key, timeout):
            raise KeyError(key)

    store = Store()
    with pytest.raises(towline.Error) as raised:
        collectives.Communicator(rank=0, size=2, store=store, timeout=1)
    assert isinstance(raised.value.__cause__, KeyError)
    assert all(isinstance(value, bytes) for value in store.values.values())


def test_names():
    assert {"cpu", "fake"} <= set(collectives.backends())
    assert [op.name.lower() for op in collectives.ReduceOp] == "sum product min max band bor bxor avg premul_sum".split()
    with pytest.raises(towline.Error):
        collectives.Communicator(rank=0, size=1, backend="no such backend")


def test_the_interpreter_ends_with_a_communicator_open():
    done = run_script(
        """
import numpy as np
from towline import collectives
world = collectives.Communicator(rank=0, size=1)
work = world.all_reduce(np.ones(100), async_op=True)
world.self = None if False else work
""".replace("world.self = None if False else work", "kept = [world, work]; kept.append(kept)")
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_rank_and_size_from_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert collectives.environment("torchrun") == (2, 5)


def test_a_forked_child_is_told():
    done = run_script(
        """
import os
import numpy as np
import towline
from towline import collectives
world = collectives.Communicator(rank=0, size=1)
if os.fork() == 0:
    try:
        world.barrier()
        os._exit(1)
    except towline.Forked:
        os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
world.barrier()
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_stubs_are_complete():
    import ast
    import pathlib

    from towline import _collectives

    stub = ast.parse((pathlib.Path(towline.__file__).parent / "_collectives.pyi").read_text())
    classes = [node for node in stub.body if isinstance(node, ast.ClassDef)]
    classes = [node for node in classes if node.name[0] != "_"]
    assert {node.name for node in classes} == {name for name in vars(_collectives) if name[0].isupper()}
    for node in classes:
        stubbed = {item.name for item in node.body if isinstance(item, ast.FunctionDef) and item.name[0] != "_"}
        assert stubbed == {name for name in vars(getattr(_collectives, node.name)) if name[0] != "_"}, node.name
    assert set(collectives.__all__) <= set(vars(collectives))

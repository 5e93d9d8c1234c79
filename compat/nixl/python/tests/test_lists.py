"""Descriptor lists: from tuples, arrays and tensors, and what they can do."""

from __future__ import annotations

import pickle
import sys
import types

import numpy as np
import pytest

import nixl
from nixl import DRAM_SEG, VRAM_SEG, nixlRegDList, nixlRemoteDList, nixlXferDList
from nixl._bindings import nixlNotFoundError

THREE = [(1000, 105, 0), (2000, 30, 1), (2**64 - 1, 2**64 - 1, 2**64 - 1)]
FOUR = [(1000, 105, 0, b"a\0b"), (2000, 30, 1, b""), (2**64 - 1, 0, 7, b"\xff")]


@pytest.fixture(scope="module")
def agent():
    return nixl.nixl_agent("lists", nixl.nixl_agent_config(backends=[]))


def entries(descs) -> list[tuple]:
    return [descs[i] for i in range(descs.descCount())]


# ---- making


def test_tuples_to_a_transfer_list(agent):
    descs = agent.get_xfer_descs(THREE, "DRAM")
    assert entries(descs) == THREE
    assert (descs.descCount(), descs.getType(), descs.isEmpty()) == (3, DRAM_SEG, False)
    assert agent.get_xfer_descs(descs) is descs


def test_tuples_to_a_registration_list(agent):
    descs = agent.get_reg_descs([(1000, 105, 0, "text"), *FOUR], "DRAM")
    assert entries(descs) == [(1000, 105, 0, b"text"), *FOUR]
    assert agent.get_reg_descs(descs) is descs


def test_tuples_to_a_remote_list(agent):
    descs = agent.get_remote_descs([(1000, 105, 0, "peer")], "VRAM")
    assert (descs[0], descs.getType()) == ((1000, 105, 0, "peer"), VRAM_SEG)
    assert agent.get_remote_descs(descs) is descs


@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
@pytest.mark.parametrize("layout", ["rows", "columns", "every second", "read only", "none"])
def test_arrays_of_any_layout(agent, dtype, layout):
    array = np.arange(30, dtype=dtype).reshape(10, 3)
    if layout == "columns":
        array = np.asfortranarray(array)
    elif layout == "every second":
        array = array[::2]
    elif layout == "read only":
        array.flags.writeable = False
    elif layout == "none":
        array = array[:0]
    expected = [tuple(row) for row in array.tolist()]
    assert entries(agent.get_xfer_descs(array, "DRAM")) == expected
    assert entries(agent.get_reg_descs(array, "DRAM")) == [(*row, b"") for row in expected]


@pytest.mark.parametrize("count", [1, 2, 3, 511, 512, 513, 514, 1025, 5000])
def test_an_array_of_one_length_and_device(agent, count):
    array = np.zeros((count, 3), dtype=np.uint64)
    array[:, 0] = np.random.default_rng(count).integers(0, 2**63, count, dtype=np.uint64)
    array[:, 1:] = (2**64 - 1, 7)
    for row, column in [(None, None), *((row, column) for row in {0, 1, count // 2, count - 1} for column in (1, 2))]:
        changed = array.copy()
        if row is not None and row < count:
            changed[row, column] -= np.uint64(1)
        descs = agent.get_xfer_descs(changed, "DRAM")
        assert (descs.descCount(), descs.getType(), descs.isEmpty()) == (count, DRAM_SEG, False)
        assert entries(descs) == [tuple(line) for line in changed.tolist()]
        assert descs == agent.get_xfer_descs([tuple(line) for line in changed.tolist()], "DRAM")


def test_a_list_does_not_change_with_its_array(agent):
    array = np.array([[1000, 8, 0], [2000, 8, 0]], dtype=np.int64)
    descs = agent.get_xfer_descs(array, "DRAM")
    array[:] = 0
    assert entries(descs) == [(1000, 8, 0), (2000, 8, 0)]
    descs.addDesc((3000, 9, 1))
    assert entries(descs) == [(1000, 8, 0), (2000, 8, 0), (3000, 9, 1)]


def test_integers_of_numpy_in_tuples(agent):
    assert entries(agent.get_xfer_descs([(np.uint64(7), np.int32(8), True)], "DRAM")) == [(7, 8, 1)]


@pytest.mark.parametrize("name", ["DRAM", "VRAM", "FILE", "BLOCK", "OBJ", "cpu", "cuda"])
def test_memory_types(agent, name):
    assert agent.get_xfer_descs([(1, 2, 3)], name).getType() == agent.nixl_mems[name]


def test_no_descriptors(agent):
    assert agent.get_xfer_descs([], "DRAM").isEmpty()
    assert agent.get_reg_descs([], "FILE").isEmpty()


def test_a_list_may_be_made_with_empty_entries():
    assert entries(nixlXferDList(DRAM_SEG, 2)) == [(0, 0, 0)] * 2
    assert nixlXferDList(type=DRAM_SEG, init_size=1).descCount() == 1
    assert entries(nixlRegDList(type=DRAM_SEG, descs=FOUR)) == FOUR


@pytest.mark.parametrize(
    ("descs", "mem_type"),
    [
        ([(1, 2, 3, 4)], "DRAM"),
        ([(1, 2, 3)], None),
        ([], None),
        ([1, 2, 3], "DRAM"),
        (nixlRegDList(DRAM_SEG), "DRAM"),
        (np.zeros((2, 3), np.uint64), None),
        (np.zeros((2, 4), np.uint64), "DRAM"),
        (np.zeros(3, np.uint64), "DRAM"),
    ],
)
def test_what_is_no_transfer_list_gives_none(agent, descs, mem_type):
    assert agent.get_xfer_descs(descs, mem_type) is None


@pytest.mark.parametrize(
    ("descs", "mem_type"),
    [
        ([(1, 2, 3)], "DRAM"),
        ([(1, 2, 3, "")], None),
        (nixlXferDList(DRAM_SEG), "DRAM"),
        (np.zeros((2, 5), np.uint64), "DRAM"),
    ],
)
def test_what_is_no_registration_list_gives_none(agent, descs, mem_type):
    assert agent.get_reg_descs(descs, mem_type) is None


def test_what_is_no_remote_list_gives_none(agent):
    assert agent.get_remote_descs([(1, 2, 3)], "DRAM") is None
    assert agent.get_remote_descs([(1, 2, 3, "peer")]) is None


def test_an_unknown_memory_type(agent):
    with pytest.raises(KeyError):
        agent.get_xfer_descs([(1, 2, 3)], "V-RAM")
    with pytest.raises(KeyError):
        agent.get_reg_descs([(1, 2, 3, "")], "V-RAM")


@pytest.mark.parametrize(
    ("descs", "error"),
    [
        ([(1, 2, 3), (1, 2)], ValueError),
        ([(1, 2, 3), [1, 2, 3]], TypeError),
        ([(1, 2, 3), (1, 2, "3")], TypeError),
        ([(1, 2.5, 3)], TypeError),
        ([(-1, 2, 3)], OverflowError),
        ([(2**64, 2, 3)], OverflowError),
        (np.zeros((2, 3), np.float64), ValueError),
        (np.zeros((2, 3), np.uint32), ValueError),
        (np.zeros((2, 3), ">u8"), ValueError),
    ],
)
def test_wrong_entries_are_errors(agent, descs, error):
    with pytest.raises(error):
        agent.get_xfer_descs(descs, "DRAM")


# ---- tensors, of a module that is torch enough


class Tensor:
    def __init__(self, address: int, items: int, device: int = -1, contiguous: bool = True) -> None:
        self.address, self.items, self.ordinal, self.contiguous = address, items, device, contiguous
        self.device = f"cuda:{device}" if device >= 0 else "cpu"

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.items

    def element_size(self) -> int:
        return 2

    def get_device(self) -> int:
        return self.ordinal

    def is_contiguous(self) -> bool:
        return self.contiguous


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))


def test_tensors(agent, torch):
    assert entries(agent.get_xfer_descs(Tensor(64, 8))) == [(64, 16, 0)]
    assert entries(agent.get_reg_descs(Tensor(64, 8))) == [(64, 16, 0, b"")]
    on_gpu = agent.get_xfer_descs([Tensor(64, 8, device=1), Tensor(128, 4, device=1)])
    assert (entries(on_gpu), on_gpu.getType()) == ([(64, 16, 1), (128, 8, 1)], VRAM_SEG)


def test_tensors_that_can_not_be_one_list(agent, torch):
    assert agent.get_xfer_descs(Tensor(64, 8, contiguous=False)) is None
    assert agent.get_reg_descs([Tensor(64, 8), Tensor(64, 8, contiguous=False)]) is None
    assert agent.get_xfer_descs([Tensor(64, 8), Tensor(64, 8, device=0)]) is None


# ---- what lists can do


def test_editing():
    descs = nixlXferDList(DRAM_SEG, THREE)
    descs.addDesc((1, 2, 3))
    descs.append((4, 5, 6))
    descs[0] = (7, 8, 9)
    descs.remDesc(1)
    assert entries(descs) == [(7, 8, 9), THREE[2], (1, 2, 3), (4, 5, 6)]
    assert descs.index((1, 2, 3)) == 2
    descs.clear()
    assert descs.isEmpty()


def test_what_is_not_there():
    descs = nixlXferDList(DRAM_SEG, THREE)
    with pytest.raises(nixlNotFoundError):
        descs.index((9, 9, 9))
    for call in (lambda: descs[3], lambda: descs.remDesc(3), lambda: descs.__setitem__(3, (1, 2, 3))):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(TypeError):
        descs[-1]


def test_a_registration_list_trims_to_a_transfer_list():
    assert entries(nixlRegDList(DRAM_SEG, FOUR).trim()) == [desc[:3] for desc in FOUR]


@pytest.mark.parametrize("descs", [nixlXferDList(VRAM_SEG, THREE), nixlRegDList(VRAM_SEG, FOUR), nixlXferDList(DRAM_SEG)])
def test_pickles(agent, descs):
    copy = agent.deserialize_descs(agent.get_serialized_descs(descs))
    assert (copy, entries(copy), copy.getType()) == (descs, entries(descs), descs.getType())
    assert copy != type(descs)(DRAM_SEG, 1)


def test_a_damaged_pickle_is_refused():
    state = nixlXferDList(DRAM_SEG, THREE).__getstate__()
    for wrong in (b"", b"x", state[:-1], state + b"x", state[1:]):
        with pytest.raises(ValueError):
            nixlXferDList.__new__(nixlXferDList).__setstate__(wrong)


def test_lists_compare_by_what_they_hold():
    assert nixlXferDList(DRAM_SEG, THREE) == nixlXferDList(DRAM_SEG, THREE)
    assert nixlXferDList(DRAM_SEG, THREE) != nixlXferDList(VRAM_SEG, THREE)
    assert nixlRemoteDList(DRAM_SEG, [(1, 2, 3, "a")]) != nixlRemoteDList(DRAM_SEG, [(1, 2, 3, "b")])


def test_printing(capsys):
    nixlXferDList(DRAM_SEG, THREE).print()
    assert "(1000, 105, 0)" in capsys.readouterr().out

"""Named, shaped regions: pages by their place in a layout."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import towline
from conftest import BACKENDS, TIMEOUT

LAYERS, MY_PAGES, THEIR_PAGES, WORDS = 3, 8, 16, 64


class Caches:
    """Two paged caches of other sizes, both named "kv", every word stamped."""

    def __init__(self, make_agent, **options) -> None:
        self.near = make_agent("near", **options)
        self.far = make_agent("far", **options)
        self.mine = np.arange(LAYERS * MY_PAGES * WORDS, dtype=np.uint32).reshape(LAYERS, MY_PAGES, WORDS)
        self.theirs = np.zeros((LAYERS, THEIR_PAGES, WORDS), np.uint32)
        self.kv = self.near.register(self.mine, name="kv", page_dim=1, access="rw")
        self.their_kv = self.far.register(self.theirs, name="kv", page_dim=1, access="rw")
        self.peer = self.near.add_peer(self.far.metadata())
        self.there = self.peer["kv"]


@pytest.fixture
def caches(make_agent):
    return Caches(make_agent)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_go_where_their_layout_says(make_agent, backend):
    caches = Caches(make_agent, backends=backend)
    here, there = [5, 0, 7], np.array([15, 2, 9])
    caches.near.copy(caches.kv[1, here], caches.there[1, there]).result(TIMEOUT)
    assert np.array_equal(caches.theirs[1, there], caches.mine[1, here])
    assert np.count_nonzero(caches.theirs.any(axis=2)) == 3
    caches.near.copy(caches.kv.view().select(1, here), caches.there.select(1, there)).result(TIMEOUT)
    assert np.array_equal(caches.theirs[:, there], caches.mine[:, here])
    caches.near.copy(caches.there[2, 4:8], caches.kv[0][range(1, 8, 2)]).result(TIMEOUT)
    assert np.array_equal(caches.mine[0, 1::2], caches.theirs[2, 4:8])
    caches.near.copy(caches.kv[-1][-1], caches.there[0, 0]).result(TIMEOUT)
    assert np.array_equal(caches.theirs[0, 0], caches.mine[-1, -1])


def test_a_group_takes_a_layer_at_a_time(caches):
    pages = [1, 3, 6]
    with caches.near.group(notice=b"req") as push:
        for layer in range(LAYERS):
            push.copy(caches.kv[layer, pages], caches.peer["kv"][layer, pages])
    assert np.array_equal(caches.theirs[:, pages], caches.mine[:, pages])
    assert caches.far.receive(TIMEOUT).data == b"req"
    assert len(caches.near._plans) == 1  # one plan, although each layer asked the peer by name


def test_views_show_what_they_are(caches):
    assert caches.there.shape == (LAYERS, THEIR_PAGES)
    assert caches.there[2].shape == (THEIR_PAGES,)
    assert caches.there[:2, 3:5].shape == (2, 2)
    assert caches.there[0, 0].shape == ()
    assert caches.there[0, [1, 2]].nbytes == 2 * WORDS * 4
    assert caches.there.layout == towline.Layout(WORDS * 4, (LAYERS, THEIR_PAGES), (THEIR_PAGES * WORDS * 4, WORDS * 4))
    assert repr(caches.there[1]) == "View('kv', shape=(16,), peer='far')"
    assert [layer.shape for layer in caches.there] == [(THEIR_PAGES,)] * LAYERS
    assert len(caches.there[1]) == THEIR_PAGES
    assert caches.peer.regions()[0].name == "kv"
    assert "'kv'" in repr(caches.kv)
    assert caches.near.info()["regions"][0]["layout"] == "3 x 8 elements of 256 bytes"


def test_what_does_not_match_is_said(caches):
    with pytest.raises(towline.Mismatch, match=r"shape=\(3, 8\).*shape=\(3, 16\), peer='far'"):
        caches.near.copy(caches.kv.view(), caches.there)
    with pytest.raises(IndexError, match="index 16 is out of range: dimension 1 of region 'kv' has 16"):
        caches.there[0, 16]
    with pytest.raises(IndexError, match="all of them narrowed"):
        caches.there[0, 0, 0]
    with pytest.raises(towline.OutOfRange, match="dimension 1 has 16 elements: index 99 at position 1 of 2"):
        caches.near.copy(caches.kv[0, [1, 2]], caches.there[0, [1, 99]])
    with pytest.raises(IndexError, match="leaves dimension 1"):
        caches.there[0, range(10, 17)]
    with pytest.raises(towline.NotFound, match="has no region named 'vk'; it has 'kv'"):
        caches.peer["vk"]
    with pytest.raises(towline.AlreadyExists, match="is named 'kv' already"):
        caches.near.register(caches.mine, name="kv", access="rw")
    with pytest.raises(towline.InvalidArgument, match="options.name is not"):
        caches.near.register(caches.mine, page_dim=1, access="rw")
    other = np.zeros((LAYERS, THEIR_PAGES, WORDS // 2), np.uint32)
    region = caches.near.register(other, name="halves", page_dim=1, access="rw")
    with pytest.raises(towline.Mismatch, match="their elements don't pair"):
        caches.near.plan(region.view().list, caches.there.list)
    plan = caches.near.plan(caches.there.list, region.view().list, recut=True)
    caches.theirs[0, 0] = 7
    plan.post([0], [0, 1]).result(TIMEOUT)
    assert np.all(other[0, :2] == 7)
    for picks in ("0", b"0", {0: 1}, 1.5):
        with pytest.raises(TypeError, match=f"dimension 0 of region 'kv' is narrowed by .* not by {type(picks).__name__}"):
            caches.there[picks]
    with pytest.raises(towline.InvalidArgument, match="position 0 is a bool"):
        caches.near.copy(caches.there[0, [True, False]], caches.kv[0, [0, 1]])


def test_a_view_is_its_regions_list_to_a_plan(caches):
    plan = caches.near.plan(caches.there, caches.kv.view())
    caches.theirs[0, 3] = 5
    plan.post([3], [1]).result(TIMEOUT)
    assert np.all(caches.mine[0, 1] == 5)
    for part in (caches.there[0], caches.there[:, ::-1], caches.there.list[[0, 1]]):
        with pytest.raises(towline.InvalidArgument, match="between whole lists: its posts bring the picks"):
            caches.near.plan(part, caches.kv.view())
    with pytest.raises(towline.InvalidArgument, match="not ndarray"):
        caches.near.plan(caches.there, caches.mine)
    assert asyncio.run(caches.near.plan_async(caches.there, caches.kv.view())).backend == plan.backend


def test_a_layout_can_be_given_in_bytes(make_agent):
    agent = make_agent()
    memory = agent.allocate(4096 * 16)
    region = agent.register(memory, name="rings", layout=towline.Layout(1024, (4, 2), (8192, 4096)), access="rw")
    assert region.view().layout.strides == (8192, 4096)
    dense = agent.register(memory, name="dense", layout=(1024, (4, 2)), access="rw")
    assert dense.view().layout.strides == (2048, 1024)
    with pytest.raises(towline.InvalidArgument, match="ends beyond the region's 65536 bytes"):
        agent.register(memory, name="more", layout=(4096, (17,)), access="rw")
    with pytest.raises(towline.InvalidArgument, match="layout is a Layout"):
        agent.register(memory, name="odd", layout=(4096,), access="rw")

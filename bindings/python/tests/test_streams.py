"""Posts of plans that move memory of a GPU, which is made of host memory here: the C++ tests' fake."""

from __future__ import annotations

import pathlib
import sys
import types

import numpy as np
import pytest

import towline
from conftest import TIMEOUT, stamped

_BUILDS = pathlib.Path(__file__).parents[3] / "build"
FAKE = next((path for path in (_BUILDS / preset / "src/cuda_fake.so" for preset in ("ci", "dev")) if path.exists()), None)
pytestmark = pytest.mark.skipif(FAKE is None, reason="no library of GPU models: build the tests of preset ci")


class Pages:
    """Two agents with pages that count as a GPU's, and a plan from one's to the other's."""

    def __init__(self, make_agent, **more) -> None:
        config = {"plugins": [str(FAKE)], **more}
        self.near, self.far = (make_agent(name, backends="cuda", config=config) for name in ("near", "far"))
        self.mine, self.theirs = stamped(16, 4096, 0), stamped(16, 4096, 1000)
        lists = []
        for agent, pages in (self.near, self.mine), (self.far, self.theirs):
            place = (pages.ctypes.data, pages.nbytes, 0)
            setattr(self, f"region_{agent.name}", agent.register(place, access="rw", kind="vram"))
            rows = [(pages.ctypes.data + 4096 * page, 4096, 0) for page in range(16)]
            owner = agent if agent is self.near else self.near.add_peer(self.far.metadata())
            lists.append(owner.block_list(rows, kind="vram"))
        self.plan = self.near.plan(*lists)

    def arrived(self) -> bool:
        return np.array_equal(self.mine, self.theirs)


def test_a_post_names_a_stream_or_says_that_it_needs_none(make_agent):
    pages = Pages(make_agent)
    with pytest.raises(towline.InvalidArgument, match="names no stream.*unordered"):
        pages.plan.post()
    with pytest.raises(towline.InvalidArgument, match="a stream, or 'unordered'"):
        pages.plan.post(stream="later")
    assert not pages.arrived()
    post = pages.plan.post(stream="unordered")
    assert post.result(TIMEOUT).status == towline.Status.OK
    assert pages.arrived() and post.backend == "cuda" and pages.plan.backend == "cuda"


def test_a_program_may_say_it_once_for_all(make_agent):
    pages = Pages(make_agent, **{"gpu.unordered": True})
    assert pages.plan.post().result(TIMEOUT).status == towline.Status.OK
    assert pages.arrived()


def test_torchs_current_stream_is_taken(make_agent, monkeypatch):
    asked = []

    def current_stream(gpu):
        asked.append(gpu)
        return types.SimpleNamespace(cuda_stream=0)

    cuda = types.SimpleNamespace(is_initialized=lambda: True, current_stream=current_stream)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    pages = Pages(make_agent)
    assert pages.plan.post().result(TIMEOUT).status == towline.Status.OK
    assert pages.arrived() and asked == [0]

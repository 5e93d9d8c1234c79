"""The calls that are made for every request take a short way. It does what the methods do, whatever they are given."""

from __future__ import annotations

import gc
import inspect

import numpy as np
import pytest

import nixl
from conftest import Pair, eventually, finish
from nixl._bindings import nixlInvalidParamError, nixlNotFoundError

QUICK = [
    "transfer",
    "check_xfer_state",
    "get_new_notifs",
    "make_prepped_xfer",
    "initialize_xfer",
    "prep_xfer_dlist",
    "get_xfer_descs",
]


@pytest.mark.parametrize("name", QUICK)
def test_they_say_what_they_are(name):
    method = getattr(nixl.nixl_agent, name)
    assert method.__name__ == name and method.__doc__ and method.__module__ == "nixl._api"
    assert "self" in inspect.signature(method).parameters
    assert inspect.unwrap(method).__qualname__ == f"nixl_agent.{name}"


@pytest.mark.parametrize("name", QUICK)
def test_wrong_arguments_are_type_errors(pair, name):
    method = getattr(pair.near, name)
    with pytest.raises(TypeError):
        method(*range(12))
    with pytest.raises(TypeError, match="nonsense"):
        method(nonsense=1)
    with pytest.raises(TypeError):
        getattr(nixl.nixl_agent, name)()


def test_arguments_by_name(pair):
    near, far = pair.near, pair.far
    name = far.name
    descs = near.get_xfer_descs(descs=pair.my_list, mem_type=None)
    local = near.prep_xfer_dlist(xfer_list=descs, agent_name="NIXL_INIT_AGENT", backends=["UCX"])
    remote = near.prep_xfer_dlist(name, xfer_list=pair.their_list)
    handle = near.make_prepped_xfer(
        remote_indices=range(2),
        operation="READ",
        local_xfer_side=local,
        local_indices=np.arange(2),
        remote_xfer_side=remote,
        **{"".join(["notif", "_msg"]): "by name"},  # not the interpreter's own string
    )
    finish(near, handle, near.transfer(handle=handle))
    assert near.check_xfer_state(handle=handle) == "DONE"
    assert eventually(lambda: far.get_new_notifs(backends=[])) == {near.name: [b"by name"]}
    whole = near.initialize_xfer(
        operation="WRITE", local_descs=descs, remote_descs=pair.their_list, remote_agent=name.encode(), backends=["UCX"]
    )
    finish(near, whole, near.transfer(whole, notif_msg=b"again"))
    assert eventually(far.get_new_notifs) == {near.name: [b"again"]}


def test_an_agent_in_place_of_the_bindings_is_called(pair):
    class Spy:
        def __init__(self, inside):
            self.inside, self.called = inside, []

        def __getattr__(self, name):
            self.called.append(name)
            return getattr(self.inside, name)

    pair.near.agent = spy = Spy(pair.near.agent)
    local = pair.near.prep_xfer_dlist("", pair.my_list)
    remote = pair.near.prep_xfer_dlist(pair.far.name, pair.their_list)
    handle = pair.near.make_prepped_xfer("READ", local, [0], remote, [0])
    finish(pair.near, handle, pair.near.transfer(handle))
    handle.release()
    assert pair.near.get_new_notifs() == {}
    assert {"prepXferDlist", "makeXferReq", "releaseXferReq"} <= set(spy.called)


def test_overridden_methods_are_called(make_agent):
    class Agent(nixl.nixl_agent):
        def get_new_notifs(self, backends=[]):
            return {"mine": [b"own"], **super().get_new_notifs(backends)}

    agent = Agent("overridden")
    assert agent.update_notifs() == {"mine": [b"own"]}


def test_handles(pair):
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("READ", local, [0], remote, [0])
    assert type(handle) is nixl.nixl_xfer_handle and type(local) is nixl.nixl_prepped_dlist_handle
    assert handle._handle != 0 and handle._agent is pair.near.agent and handle._released is False
    assert repr(handle) == f"nixl_xfer_handle({handle._handle:#x}, released=False)"
    number = handle._handle
    handle.release()
    assert handle._released is True and handle.release() is None
    for call in (pair.near.transfer, pair.near.check_xfer_state):
        with pytest.raises(nixlInvalidParamError):
            call(handle)
    again = nixl.nixl_xfer_handle(pair.near.agent, number)  # a number that is not given out any more
    with pytest.raises(nixlInvalidParamError):
        again.release()
    assert again._released is False
    again._released = True  # else it would complain when it goes
    local.release()
    with pytest.raises(nixlInvalidParamError):
        pair.near.make_prepped_xfer("READ", local, [0], remote, [0])


def test_handles_free_what_they_are_of_when_they_go(pair):
    local, remote = pair.sides()
    number = pair.near.make_prepped_xfer("READ", local, [0], remote, [0])._handle
    gc.collect()
    with pytest.raises(nixlInvalidParamError):
        pair.near.agent.postXferReq(number)
    nixl.nixl_xfer_handle(pair.near.agent, number)  # gone at once, and not to be freed: a line in the log
    gc.collect()


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8", "q", "Q", ">i4"])
@pytest.mark.parametrize("how", ["plain", "reversed", "strided", "empty", "one"])
def test_indices_in_every_form(pair, dtype, how):
    every = np.arange(8, dtype=dtype)
    indices = {
        "plain": every,
        "reversed": every[::-1],
        "strided": every[::2],
        "empty": every[:0],
        "one": every[3:4],
    }[how]
    local, remote = pair.sides()
    make = lambda: pair.near.make_prepped_xfer("READ", local, indices, remote, indices.tolist())
    if dtype == ">i4":
        with pytest.raises(ValueError):
            make()
    elif how == "empty":
        with pytest.raises(nixlInvalidParamError):
            make()
    else:
        handle = make()
        finish(pair.near, handle, pair.near.transfer(handle))


def test_what_is_not_there_is_said(pair):
    with pytest.raises(nixlNotFoundError, match="nobody"):
        pair.near.initialize_xfer("READ", pair.my_list, pair.their_list, "nobody")
    with pytest.raises(nixlNotFoundError, match="nobody"):
        pair.near.prep_xfer_dlist("nobody", pair.their_list)

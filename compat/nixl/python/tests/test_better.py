"""Promises where NIXL hurts. Each test fails on nixl 1.5.1, or crashes it."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from conftest import Pair, eventually, finish, fresh, register, rows, rows_at, stamped
from nixl._bindings import nixlInvalidParamError, nixlNotAllowedError, nixlNotFoundError, nixlRemoteDisconnectError

IDLE_SECONDS = 2.0


@pytest.mark.parametrize("prog_thread", [True, False])
def test_a_write_to_an_idle_target_completes(make_agent, start_far, prog_thread):
    near, far = make_agent("near", enable_prog_thread=prog_thread), start_far()
    mine = stamped(64, 4096, 0)
    register(near, mine)
    near.add_remote_agent(far.metadata)
    handle = near.initialize_xfer("WRITE", near.get_xfer_descs(rows(mine), "DRAM"), far.descs(near), far.name)
    finish(near, handle, near.transfer(handle))
    assert (far.ask("pages") == mine).all()


@pytest.mark.parametrize("transport", ["", "tcp"])
def test_a_notification_leaves_although_its_sender_never_asks(make_agent, start_far, monkeypatch, transport):
    """The far application posts a WRITE and never looks at it again."""
    if transport:
        monkeypatch.setenv("TOWLINE_NIXL_BACKENDS", transport)
    near, far = make_agent("near"), start_far()
    mine = np.zeros((1, far.page_bytes // 4), np.uint32)
    register(near, mine)
    far.ask("add", near.get_agent_metadata())
    near.add_remote_agent(far.metadata)
    assert far.ask("write", near.name, mine.ctypes.data, b"page 1000") == "posted"
    eventually(lambda: near.check_remote_xfer_done(far.name, b"page 1000"))
    assert (mine == 1000).all()


def test_an_idle_agent_does_not_spin(start_far):
    far = start_far()
    used = far.ask("processor seconds", IDLE_SECONDS)
    assert used < 0.01 * IDLE_SECONDS, f"{used:.4f} s of processor time in {IDLE_SECONDS} s"


def test_requests_and_lists_survive_what_they_stand_on(make_agent):
    """After the peer is removed and added again they answer with errors, and never with freed memory."""
    pair = Pair(make_agent)
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("READ", local, [0], remote, [0])
    for _ in range(20):
        pair.near.remove_remote_agent(pair.far.name)
        pair.near.add_remote_agent(pair.far.get_agent_metadata())
        with pytest.raises((nixlNotFoundError, nixlRemoteDisconnectError, nixlNotAllowedError, nixlInvalidParamError)):
            pair.near.transfer(handle)
        with pytest.raises((nixlNotFoundError, nixlRemoteDisconnectError, nixlNotAllowedError, nixlInvalidParamError)):
            pair.near.make_prepped_xfer("READ", local, [0], remote, [0])
    fresh_one = pair.request()
    finish(pair.near, fresh_one, pair.near.transfer(fresh_one))
    assert (pair.mine == pair.theirs).all()


def test_a_peer_that_restarts_under_its_name_is_just_added(make_agent, start_far):
    near = make_agent("near")
    mine = np.zeros((64, 1024), np.uint32)
    register(near, mine)
    mine_descs = near.get_xfer_descs(rows(mine), "DRAM")
    name, old = fresh("restarts"), None
    for _ in range(3):
        far = start_far(name)
        near.add_remote_agent(far.metadata)
        mine[:] = 0
        handle = near.initialize_xfer("READ", mine_descs, far.descs(near), name, b"read")
        finish(near, handle, near.transfer(handle))
        assert mine[5, 0] == 1005
        assert far.ask("notifications", 1) == [b"read"]
        if old is not None:
            with pytest.raises((nixlRemoteDisconnectError, nixlNotFoundError, nixlNotAllowedError)):
                finish(near, old, near.transfer(old))
        old = handle
        far.kill()


def test_the_failure_of_one_peer_leaves_the_others_alone(make_agent, start_far):
    near, lost, kept = make_agent("near"), start_far(), start_far()
    mine = np.zeros((64, 1024), np.uint32)
    register(near, mine)
    descs = near.get_xfer_descs(rows(mine), "DRAM")
    handles = {}
    for far in (lost, kept):
        near.add_remote_agent(far.metadata)
        handles[far] = near.initialize_xfer("READ", descs, far.descs(near), far.name)
        finish(near, handles[far], near.transfer(handles[far]))
    lost.kill()

    def fails() -> bool:
        try:
            finish(near, handles[lost], near.transfer(handles[lost]))
        except nixlRemoteDisconnectError:
            return True
        return False

    for _ in range(200):
        finish(near, handles[kept], near.transfer(handles[kept]))
    eventually(fails)
    finish(near, handles[kept], near.transfer(handles[kept]))


def test_a_request_in_flight_may_be_released(make_agent, start_far, monkeypatch):
    """Nothing lands after release() came back."""
    monkeypatch.setenv("TOWLINE_NIXL_BACKENDS", "tcp")
    near, far = make_agent("near"), start_far(pages=16, page_bytes=4 << 20)
    mine = np.zeros((16, far.page_bytes // 4), np.uint32)
    register(near, mine)
    near.add_remote_agent(far.metadata)
    handle = near.initialize_xfer("READ", near.get_xfer_descs(rows(mine), "DRAM"), far.descs(near), far.name)
    near.make_connection(far.name)
    assert near.transfer(handle) == "PROC"
    handle.release()
    before = mine.copy()
    assert far.ask("pages")[0, 0] == 1000  # a round trip through the other process
    assert (mine == before).all()


def test_memory_may_be_registered_more_than_once(make_agent):
    pair = Pair(make_agent)
    again = register(pair.far, pair.theirs[4:12])
    pair.near.add_remote_agent(pair.far.get_agent_metadata())
    pair.far.deregister_memory(again)
    handle = pair.request()
    finish(pair.near, handle, pair.near.transfer(handle))
    assert (pair.mine == pair.theirs).all()


def test_other_threads_run_while_a_call_waits(make_agent, start_far, monkeypatch):
    """Large transfers are moved without the interpreter's lock."""
    pair = Pair(make_agent, pages=16, page_bytes=8 << 20)
    handle = pair.request()
    turns, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            turns[0] += 1
            time.sleep(0)

    other = threading.Thread(target=count)
    other.start()
    for _ in range(5):
        finish(pair.near, handle, pair.near.transfer(handle))
    done.set()
    other.join()
    assert turns[0] > 5
    assert (pair.mine == pair.theirs).all()


def test_agents_come_and_go(make_agent):
    for _ in range(20):
        pair = Pair(make_agent, pages=2)
        handle = pair.request()
        finish(pair.near, handle, pair.near.transfer(handle))
        assert (pair.mine == pair.theirs).all()


def test_every_call_takes_the_name_as_bytes_too(make_agent):
    pair = Pair(make_agent)
    name = pair.near.add_remote_agent(pair.far.get_agent_metadata())
    assert name == pair.far.name.encode()
    assert pair.near.check_remote_metadata(name, pair.their_list)
    handle = pair.near.initialize_xfer("READ", pair.my_list, pair.their_list, name)
    finish(pair.near, handle, pair.near.transfer(handle))
    pair.near.make_connection(name)
    pair.near.send_notif(name, b"hello")
    eventually(lambda: pair.far.check_remote_xfer_done(pair.near.name.encode(), b"hello"))
    pair.near.remove_remote_agent(name)
    assert not pair.near.check_remote_metadata(name)


def test_descriptors_at_an_address_of_the_peer_are_checked(make_agent):
    pair = Pair(make_agent)
    beyond = pair.near.get_xfer_descs(rows_at(pair.theirs.ctypes.data + 4096, 16, 4096), "DRAM")
    with pytest.raises(nixlNotFoundError):
        pair.near.initialize_xfer("READ", pair.my_list, beyond, pair.far.name)

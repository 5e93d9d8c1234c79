"""Calls that can't succeed raise the exception of their status, and say why."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import nixl
from conftest import Pair, eventually, finish, fresh, register, rows, run_script, stamped
from nixl import _bindings
from nixl._bindings import (
    nixlInvalidParamError,
    nixlMismatchError,
    nixlNoTelemetryError,
    nixlNotAllowedError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlNotSupportedError,
    nixlRemoteDisconnectError,
)


def test_there_are_twelve_and_each_is_an_exception_of_its_own():
    kinds = {name for name in dir(_bindings) if name.startswith("nixl") and name.endswith("Error")}
    assert len(kinds) == 12
    for name in kinds:
        kind = getattr(_bindings, name)
        assert kind.__bases__ == (Exception,) and kind.__module__ == "nixl._bindings"


def test_names():
    for name in ("", "x" * 256):
        with pytest.raises(ValueError):
            nixl.nixl_agent(name)
    with pytest.raises(TypeError):
        nixl.nixl_agent(None)


def test_a_sync_mode_of_another_type():
    with pytest.raises(TypeError, match="sync_mode must be a nixl_thread_sync_t"):
        nixl.nixl_agent_config(sync_mode=1)


def test_a_port_that_is_taken(make_agent):
    import socket

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with pytest.raises(RuntimeError):
            make_agent(enable_listen_thread=True, listen_port=taken.getsockname()[1])


def test_operations(pair):
    local, remote = pair.sides()
    with pytest.raises(KeyError):
        pair.near.make_prepped_xfer("RD", local, [0], remote, [0])
    with pytest.raises(KeyError):
        pair.near.initialize_xfer("write", pair.my_list, pair.their_list, pair.far.name)


def test_backends(pair):
    with pytest.raises(nixlNotFoundError):
        pair.near.create_backend("UVX")
    with pytest.raises(nixlInvalidParamError):
        pair.near.create_backend("UCX")
    with pytest.raises(KeyError):
        pair.near.register_memory([(4096, 64, 0, "")], "DRAM", backends=["GDS"])


def test_unknown_agents(pair):
    with pytest.raises(nixlNotFoundError):
        pair.near.send_notif("nobody", b"")
    with pytest.raises(nixlNotFoundError):
        pair.near.make_connection("nobody")
    with pytest.raises(nixlNotFoundError):
        pair.near.prep_xfer_dlist("nobody", pair.their_list)
    with pytest.raises(nixlNotFoundError):
        pair.near.initialize_xfer("READ", pair.my_list, pair.their_list, "nobody")
    pair.near.remove_remote_agent("nobody")  # as in NIXL, no error
    assert not pair.near.check_remote_metadata("nobody")


def test_unregistered_memory(pair):
    elsewhere = np.zeros((1, 4096), np.uint8)
    with pytest.raises(nixlNotFoundError, match="NIXL_ERR_NOT_FOUND: .+"):
        pair.near.prep_xfer_dlist("", rows(elsewhere), "DRAM")
    with pytest.raises(nixlNotFoundError):
        pair.near.prep_xfer_dlist(pair.far.name, rows(elsewhere), "DRAM")
    with pytest.raises(nixlNotFoundError):
        pair.near.deregister_memory(pair.near.get_reg_descs(rows(elsewhere), "DRAM"))


@pytest.mark.parametrize("indices", [[16], [-1], np.array([16]), np.array([-1]), np.array([2**40]), [2**40]])
def test_indices_beyond_a_list(pair, indices):
    local, remote = pair.sides()
    with pytest.raises(nixlInvalidParamError):
        pair.near.make_prepped_xfer("READ", local, indices, remote, [0])
    with pytest.raises(nixlInvalidParamError):
        pair.near.make_prepped_xfer("READ", local, [0], remote, indices)


@pytest.mark.parametrize("indices", [np.zeros((1, 1), np.int32), np.zeros(1), np.zeros(1, bool)])
def test_arrays_that_are_no_indices(pair, indices):
    local, remote = pair.sides()
    with pytest.raises(ValueError):
        pair.near.make_prepped_xfer("READ", local, indices, remote, [0])


@pytest.mark.parametrize("indices", [[0.5], ["0"], 0, None])
def test_what_is_no_index(pair, indices):
    local, remote = pair.sides()
    with pytest.raises(TypeError):
        pair.near.make_prepped_xfer("READ", local, indices, remote, [0])


def test_sides_that_do_not_fit(pair):
    local, remote = pair.sides()
    with pytest.raises(nixlInvalidParamError):
        pair.near.make_prepped_xfer("READ", local, [], remote, [])
    with pytest.raises(nixlInvalidParamError):
        pair.near.make_prepped_xfer("READ", local, [0, 1], remote, [0])
    half = pair.near.get_xfer_descs([(pair.theirs.ctypes.data, 2048, 0)] * 16, "DRAM")
    with pytest.raises(nixlInvalidParamError):
        pair.near.initialize_xfer("READ", pair.my_list, half, pair.far.name)


@pytest.mark.parametrize("count", [2**31 + 1, 2**63])
def test_too_many_strided_descriptors(pair, count):
    with pytest.raises(nixlInvalidParamError):
        pair.near.prep_xfer_dlist("", np.array([[4096, 64, 0, 64, count], [4096, 64, 0, 64, 1]], np.uint64), "DRAM")


def test_a_request_that_was_never_started(pair):
    with pytest.raises(nixlNotPostedError):
        pair.near.check_xfer_state(pair.request())


def test_no_telemetry(make_agent, monkeypatch):
    monkeypatch.delenv("NIXL_TELEMETRY_ENABLE", raising=False)
    pair = Pair(make_agent)
    handle = pair.request()
    finish(pair.near, handle, pair.near.transfer(handle))
    with pytest.raises(nixlNoTelemetryError):
        pair.near.get_xfer_telemetry(handle)


def test_memory_views_without_a_gpu(pair):
    theirs = pair.near.get_remote_descs([(*rows(pair.theirs)[0], pair.far.name)], "DRAM")
    for descs in (pair.my_list, theirs):
        with pytest.raises(nixlNotSupportedError):
            pair.near.prep_mem_view(descs)
    with pytest.raises(nixlNotSupportedError):
        pair.near.prep_mem_view(pair.my_list, backends=["UCX"])
    with pytest.raises(nixlNotFoundError):
        pair.near.prep_mem_view(pair.near.get_remote_descs([(4096, 64, 0, pair.far.name)], "DRAM"))
    assert _bindings.HAVE_UCX_GPU_DEVICE_API is True


@pytest.mark.parametrize("blob", [b"", b"nonsense", b"\0" * 300])
def test_metadata_that_is_none(pair, blob):
    with pytest.raises((nixlMismatchError, nixlInvalidParamError)):
        pair.near.add_remote_agent(blob)


def test_damaged_metadata(pair):
    blob = bytearray(pair.far.get_agent_metadata())
    blob[len(blob) // 2] ^= 0xFF
    with pytest.raises(nixlMismatchError):
        pair.near.add_remote_agent(bytes(blob))
    with pytest.raises(nixlMismatchError):
        pair.near.add_remote_agent(pair.far.get_agent_metadata()[:-1])


def test_handles_after_their_release(pair):
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("READ", local, [0], remote, [0])
    number = handle._handle
    handle.release()
    handle.release()
    remote.release()
    for call in (
        lambda: pair.near.transfer(handle),
        lambda: pair.near.check_xfer_state(handle),
        lambda: pair.near.agent.postXferReq(number),
        lambda: pair.near.agent.releaseXferReq(number),
        lambda: pair.near.agent.releasedDlistH(number),
        lambda: pair.near.make_prepped_xfer("READ", local, [0], remote, [0]),
    ):
        with pytest.raises(nixlInvalidParamError):
            call()
    assert repr(handle) == f"nixl_xfer_handle({number:#x}, released=True)"
    assert "nixl_prepped_dlist_handle(0x" in repr(remote) and "released=True" in repr(remote)


def test_numbers_that_are_no_backend(pair):
    with pytest.raises(nixlNotFoundError):
        pair.near.agent.registerMem(pair.my_memory, [12345])
    with pytest.raises(nixlInvalidParamError):
        pair.near.agent.getBackendParams(12345)


def test_handles_of_another_agent(pair):
    local, remote = pair.sides()
    with pytest.raises(nixlInvalidParamError):
        pair.far.make_prepped_xfer("READ", local, [0], remote, [0])


# ---- peers that go


def test_a_removed_peer(pair):
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("READ", local, [0], remote, [0])
    pair.near.remove_remote_agent(pair.far.name)
    with pytest.raises((nixlNotFoundError, nixlRemoteDisconnectError, nixlNotAllowedError, nixlInvalidParamError)):
        pair.near.transfer(handle)
    with pytest.raises((nixlNotFoundError, nixlInvalidParamError, nixlNotAllowedError)):
        pair.near.make_prepped_xfer("READ", local, [0], remote, [0])
    handle.release()
    remote.release()
    pair.near.add_remote_agent(pair.far.get_agent_metadata())  # and back again
    again = pair.request()
    finish(pair.near, again, pair.near.transfer(again))
    assert (pair.mine == pair.theirs).all()


def test_memory_that_is_deregistered(pair):
    handle = pair.request()
    finish(pair.near, handle, pair.near.transfer(handle))
    pair.near.deregister_memory(pair.my_memory)
    with pytest.raises((nixlNotFoundError, nixlNotAllowedError, nixlInvalidParamError)):
        pair.near.transfer(handle)


def test_a_peer_that_is_killed(make_agent, start_far):
    near, far = make_agent("near"), start_far()
    mine = stamped(64, 4096, 0)
    register(near, mine)
    near.add_remote_agent(far.metadata)
    handle = near.initialize_xfer("READ", near.get_xfer_descs(rows(mine), "DRAM"), far.descs(near), far.name)
    finish(near, handle, near.transfer(handle))
    far.kill()

    def fails():
        try:
            state = near.transfer(handle)
            while state == "PROC":
                state = near.check_xfer_state(handle)
            return None
        except nixlRemoteDisconnectError as error:
            return error

    assert "NIXL_ERR_REMOTE_DISCONNECT" in str(eventually(fails, "the notice of its death"))

    def is_refused():
        try:
            near.initialize_xfer("READ", near.get_xfer_descs(rows(mine), "DRAM"), far.descs(near), far.name).release()
            return None  # the system still takes connections to a process that is on its way out
        except nixlRemoteDisconnectError as error:
            return error

    assert eventually(is_refused, "requests to it being refused")


# ---- ends


def test_dropped_agents_are_freed(make_agent):
    pair = Pair(make_agent)
    handle = pair.request()
    finish(pair.near, handle, pair.near.transfer(handle))
    del pair  # before its handle
    gc.collect()
    handle.release()


@pytest.mark.parametrize("end", ["", "del a", "del h", "import sys; sys.exit(0)", "a.self = a", "h.release()"])
def test_interpreters_end_with_exit_code_0(end):
    done = run_script(
        """
        import nixl
        address = nixl.malloc_passthru(4096)
        a, b = nixl.nixl_agent("a"), nixl.nixl_agent("b")
        for agent in (a, b):
            agent.register_memory([(address, 4096, 0, "")], "DRAM")
        a.add_remote_agent(b.get_agent_metadata())
        one = a.get_xfer_descs([(address, 64, 0)], "DRAM")
        two = a.get_xfer_descs([(address + 64, 64, 0)], "DRAM")
        h = a.initialize_xfer("WRITE", one, two, "b", b"done")
        a.transfer(h)
        """
        + end,
        TOWLINE_LOG_LEVEL="error",  # not the warning of the ports that are open
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_daemon_threads_may_be_in_a_call_at_the_end():
    done = run_script(
        """
        import threading, nixl
        agent = nixl.nixl_agent("ends")
        started = threading.Event()
        def work():
            while True:
                agent.get_new_notifs()
                started.set()
        threading.Thread(target=work, daemon=True).start()
        started.wait()
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_child_ends_by_itself():
    done = run_script(
        """
        import os, sys, nixl
        agent = nixl.nixl_agent("parent")
        child = os.fork()
        if child == 0:
            own = nixl.nixl_agent("child")
            del agent
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        agent.send_notif
        print(agent.get_new_notifs())
        """
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "{}"), done.stderr

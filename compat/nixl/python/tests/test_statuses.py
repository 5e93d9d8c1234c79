"""The statuses that take some doing: requests that are under way, late or released early, and failures of another
kind."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import numpy as np
import pytest

from conftest import eventually, finish, register, rows, rows_at, run_script
from nixl._bindings import nixlBackendError, nixlCancelledError, nixlRemoteDisconnectError, nixlRepostActiveError

LARGE = 8 << 20  # more than sockets hold


@contextlib.contextmanager
def stopped(far):
    """The far process hangs meanwhile."""
    os.kill(far.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(far.process.pid, signal.SIGCONT)


def connected(near, far, operation):
    """A request over TCP to a peer that is connected. A busy machine may need longer for the first run than the
    deadline that a test sets, so a small run connects, as often as it takes."""
    mine = np.zeros((far.pages, far.page_bytes), np.uint8)
    register(near, mine)
    near.add_remote_agent(far.metadata)
    here = near.get_xfer_descs(rows_at(mine.ctypes.data, 1, 4096), "DRAM")
    there = near.get_xfer_descs(rows_at(far.address, 1, 4096), "DRAM")

    def ran():
        try:
            handle = near.initialize_xfer("READ", here, there, far.name)
            finish(near, handle, near.transfer(handle))
        except (nixlBackendError, nixlRemoteDisconnectError):
            return False
        handle.release()
        return True

    eventually(ran, "a run in time")
    return mine, near.initialize_xfer(operation, near.get_xfer_descs(rows(mine), "DRAM"), far.descs(near), far.name)


@pytest.mark.parametrize("operation", ["READ", "WRITE"])
def test_a_request_under_way_can_not_be_started_again_and_ends_by_its_deadline(
    make_agent, start_far, monkeypatch, operation
):
    monkeypatch.setenv("TOWLINE_NIXL_BACKENDS", "tcp")
    far = start_far(pages=4, page_bytes=LARGE)
    monkeypatch.setenv("TOWLINE_NIXL_TIMEOUT", "3s")
    near = make_agent("near")
    _, handle = connected(near, far, operation)

    def late():
        try:
            return near.check_xfer_state(handle) != "PROC"
        except nixlBackendError as error:
            assert "NIXL_ERR_BACKEND" in str(error)
            return True

    with stopped(far):
        assert near.transfer(handle) == "PROC"
        with pytest.raises(nixlRepostActiveError):
            near.transfer(handle)
        eventually(late, "the deadline")
        with pytest.raises(nixlBackendError):
            near.check_xfer_state(handle)  # as often as one asks

    def released():
        try:
            handle.release()
            return True
        except nixlRepostActiveError:
            return False

    eventually(released, "the fence")


def test_a_request_to_a_peer_that_hangs_may_be_released(make_agent, start_far, monkeypatch):
    """It is cancelled, and nothing of it lands later. Nobody can ask about it any more: nixlCancelledError is seen
    only when a release runs out of time."""
    monkeypatch.setenv("TOWLINE_NIXL_BACKENDS", "tcp")
    far = start_far(pages=4, page_bytes=LARGE)
    near = make_agent("near")
    mine, handle = connected(near, far, "READ")
    mine[:] = 0
    with stopped(far):
        assert near.transfer(handle) == "PROC"
        try:
            handle.release()
        except nixlRepostActiveError:
            with pytest.raises(nixlCancelledError):
                near.check_xfer_state(handle)
    handle.release()
    before = mine.copy()
    assert far.ask("pages").shape[0] == far.pages  # a round trip through the other process
    assert (mine == before).all()


def test_a_release_that_runs_out_of_time_leaves_the_request_cancelled(make_agent, start_far, monkeypatch):
    """Bytes of a WRITE may still be on their way from here: the request stays until the peer has counted them."""
    monkeypatch.setenv("TOWLINE_NIXL_BACKENDS", "tcp")
    monkeypatch.setenv("TOWLINE_NIXL_TIMEOUT", "4s")
    far = start_far(pages=4, page_bytes=LARGE)
    near = make_agent("near")
    mine, first = connected(near, far, "WRITE")

    def released(handle):
        try:
            handle.release()
            return True
        except nixlRepostActiveError:
            return False

    with stopped(far):
        for patience in (0.001, 0.01, 0.1, 1, 1, 1, 1):  # seconds, until some of it is in the sockets
            handle = near.initialize_xfer("WRITE", near.get_xfer_descs(rows(mine), "DRAM"), far.descs(near), far.name)
            assert near.transfer(handle) == "PROC"
            end = time.monotonic() + patience  # the deadline is far away
            while time.monotonic() < end:
                assert near.check_xfer_state(handle) == "PROC"
            if not released(handle):
                break
        with pytest.raises(nixlCancelledError):
            near.check_xfer_state(handle)
    eventually(lambda: released(handle), "the fence")
    first.release()


def test_what_no_status_stands_for_is_unknown():
    """Memory that runs out, for example."""
    done = run_script(
        """
        import resource, numpy as np, nixl
        from nixl._bindings import nixlUnknownError
        address = nixl.malloc_passthru(4096)
        a, b = nixl.nixl_agent("a"), nixl.nixl_agent("b")
        memory = b.register_memory([(address, 4096, 0, "")], "DRAM")
        a.add_remote_agent(b.get_partial_agent_metadata(memory, inc_conn_info=True))
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        try:  # of memory that partial metadata tells of, rows are written out: 24 bytes for each descriptor
            a.prep_xfer_dlist("b", np.array([[address, 1, 0, 0, 9_000_000]], np.uint64), "DRAM")
        except nixlUnknownError as error:
            print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "NIXL_ERR_UNKNOWN: prepXferDlist: " in done.stdout

"""Data moves, notifications arrive, metadata travels."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import nixl
from conftest import TRANSPORTS, Pair, eventually, finish, fresh, register, rows, rows_at, stamped
from nixl import _bindings


@pytest.fixture(params=TRANSPORTS, ids=["best", "tcp"])
def transport(request, monkeypatch):
    if request.param:
        monkeypatch.setenv("TOWLINE_NIXL_BACKENDS", request.param)
    return request.param


@pytest.fixture
def far(transport, start_far):
    return start_far(TOWLINE_NIXL_BACKENDS=transport) if transport else start_far()


@pytest.fixture
def near(transport, make_agent):
    return make_agent("near", capture_telemetry=True)


# ---- two processes


def test_read_of_chosen_pages(near, far):
    mine = stamped(8, far.page_bytes, 0)
    register(near, mine)
    name = near.add_remote_agent(far.metadata)
    assert name == far.name.encode()
    local = near.prep_xfer_dlist("NIXL_INIT_AGENT", rows(mine), "DRAM")
    remote = near.prep_xfer_dlist(name, far.descs(near))
    handle = near.make_prepped_xfer("READ", local, [0, 3, 7], remote, [40, 7, 13])
    finish(near, handle, near.transfer(handle))
    assert mine[[0, 3, 7], 0].tolist() == [1040, 1007, 1013]
    assert mine[[1, 2], 0].tolist() == [1, 2]
    near.release_xfer_handle(handle)
    near.release_dlist_handle(local)
    near.release_dlist_handle(remote)


def test_write_with_a_notification(near, far):
    mine = stamped(4, far.page_bytes, 0)
    register(near, mine)
    near.add_remote_agent(far.metadata)
    far.ask("add", near.get_agent_metadata())
    target = near.get_xfer_descs(rows_at(far.address + 8 * far.page_bytes, 4, far.page_bytes), "DRAM")
    handle = near.initialize_xfer("WRITE", near.get_xfer_descs(rows(mine), "DRAM"), target, far.name, b"four\0pages")
    finish(near, handle, near.transfer(handle))
    assert far.ask("notifications", 1) == [b"four\0pages"]
    assert far.ask("pages")[6:13, 0].tolist() == [1006, 1007, 0, 1, 2, 3, 1012]


def test_a_request_may_run_again_with_another_notification(near, far):
    mine = np.zeros((1, far.page_bytes // 4), np.uint32)
    register(near, mine)
    near.add_remote_agent(far.metadata)
    handle = near.initialize_xfer(
        "READ",
        near.get_xfer_descs(rows(mine), "DRAM"),
        near.get_xfer_descs(rows_at(far.address + 5 * far.page_bytes, 1, far.page_bytes), "DRAM"),
        far.name,
        b"first",
    )
    finish(near, handle, near.transfer(handle))
    mine[:] = 0
    finish(near, handle, near.transfer(handle, "again"))
    assert mine[0, 0] == 1005
    assert sorted(far.ask("notifications", 2)) == [b"again", b"first"]


def test_telemetry_of_a_request(near, far):
    mine = stamped(2, far.page_bytes, 0)
    register(near, mine)
    near.add_remote_agent(far.metadata)
    local, remote = near.get_xfer_descs(rows(mine), "DRAM"), rows_at(far.address, 2, far.page_bytes)
    handle = near.initialize_xfer("READ", local, near.get_xfer_descs(remote, "DRAM"), far.name)
    finish(near, handle, near.transfer(handle))
    figures = near.get_xfer_telemetry(handle)
    assert figures.totalBytes == 2 * far.page_bytes
    assert figures.descCount >= 1
    assert figures.startTime > 0
    assert 0 < figures.postDuration <= figures.xferDuration
    duration, margin, method = near.estimate_xfer_cost(handle)
    assert duration >= 0 and margin >= 0 and method == "ANALYTICAL_BACKEND"
    assert near.query_xfer_backend(handle) == "UCX"


def test_a_connection_may_be_made_first(near, far):
    near.add_remote_agent(far.metadata)
    near.make_connection(far.name)
    near.make_connection(far.name, ["UCX"])


# ---- one process


@pytest.mark.parametrize(
    "indices",
    [
        [3, 1, 2],
        (3, 1, 2),
        np.array([3, 1, 2], np.int32),
        np.array([3, 1, 2], np.int64),
        np.array([3, 1, 2], np.uint32),
        np.array([3, 1, 2], np.int16),
        np.array([3, 1, 2], np.uint8),
        np.array([3, 9, 1, 9, 2], np.int64)[::2],
        np.array([3, 9, 1, 9, 2], np.int32)[::2],
        [np.int64(3), np.int32(1), True + 1],
    ],
    ids=["list", "tuple", "int32", "int64", "uint32", "int16", "uint8", "int64 with gaps", "int32 with gaps", "numpy integers"],
)
def test_indices_of_each_type(pair, indices):
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("READ", local, indices, remote, indices)
    finish(pair.near, handle, pair.near.transfer(handle))
    assert pair.mine[:5, 0].tolist() == [0, 1001, 1002, 1003, 4]


@pytest.mark.parametrize("indices", [range(2, 12, 3), range(11, 1, -3), range(5), range(7, 8)])
def test_ranges_of_indices(pair, indices):
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("WRITE", local, indices, remote, indices)
    finish(pair.near, handle, pair.near.transfer(handle))
    assert np.flatnonzero(pair.theirs[:, 0] < 1000).tolist() == sorted(indices)


def test_strided_rows_count_through_their_blocks(pair):
    near, page = pair.near, pair.mine.nbytes // 16
    table = np.array(
        [[pair.theirs.ctypes.data, page, 0, 4 * page, 4], [pair.theirs.ctypes.data + page, page, 0, page, 2]], np.uint64
    )
    remote = near.prep_xfer_dlist(pair.far.name, table, "DRAM")  # pages 0 4 8 12, then 1 2
    local = near.prep_xfer_dlist("", pair.my_list)
    handle = near.make_prepped_xfer("READ", local, [0, 1, 2], remote, [5, 3, 1])
    finish(near, handle, near.transfer(handle))
    assert pair.mine[:3, 0].tolist() == [1002, 1012, 1004]
    with pytest.raises(ValueError):
        near.prep_xfer_dlist("", table)
    with pytest.raises(_bindings.nixlInvalidParamError):
        near.make_prepped_xfer("READ", local, [0], remote, [6])


def test_a_transfer_within_one_agent(make_agent):
    agent = make_agent()
    pages = stamped(8, 4096, 0)
    register(agent, pages)
    local, remote = agent.prep_xfer_dlist("", rows(pages), "DRAM"), agent.prep_xfer_dlist(agent.name, rows(pages), "DRAM")
    handle = agent.make_prepped_xfer("WRITE", local, [0, 1], remote, [6, 7], b"to myself")
    finish(agent, handle, agent.transfer(handle))
    assert pages[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    eventually(lambda: agent.check_remote_xfer_done(agent.name, b"to myself"))


def test_many_descriptors_land_where_they_belong(make_agent):
    pair = Pair(make_agent, pages=20_000, page_bytes=256)
    order = np.random.default_rng(5).permutation(20_000)
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("READ", local, np.arange(20_000), remote, order)
    finish(pair.near, handle, pair.near.transfer(handle))
    assert (pair.mine == 1000 + order[:, None]).all()


def test_requests_outlive_their_lists(pair):
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("READ", local, [0], remote, [1])
    local.release()
    remote.release()
    remote.release()  # again: nothing
    finish(pair.near, handle, pair.near.transfer(handle))
    assert pair.mine[0, 0] == 1001


def test_threads_share_an_agent(pair):
    local, remote = pair.sides()
    failures: list[BaseException] = []

    def work(page: int) -> None:
        try:
            for _ in range(50):
                pair.mine[page] = 0
                handle = pair.near.make_prepped_xfer("READ", local, [page], remote, [page], b"%d" % page)
                finish(pair.near, handle, pair.near.transfer(handle))
                assert pair.mine[page, 0] == 1000 + page
                handle.release()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(page,)) for page in range(8)]
    for thread in threads:
        thread.start()
    got: list[bytes] = []
    eventually(lambda: got.extend(m for l in pair.far.get_new_notifs().values() for m in l) or len(got) == 400)
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(got) == sorted(b"%d" % page for page in range(8) for _ in range(50))


# ---- notifications


def test_notifications_of_two_senders_that_take_turns(make_agent):
    receiver, *senders = (make_agent(name) for name in ("receiver", "one", "two"))
    for sender in senders:
        sender.add_remote_agent(receiver.get_agent_metadata())
    wanted = {sender.name: [str(turn).encode() for turn in range(20)] for sender in senders}
    got = {sender.name: [] for sender in senders}

    def take() -> bool:
        for name, messages in receiver.get_new_notifs().items():
            got[name].extend(messages)
        return got == wanted

    for turn in range(20):
        for sender in senders:
            sender.send_notif(receiver.name, str(turn))
        if turn % 3 == 0:
            take()
    assert eventually(take)


def test_notifications_by_sender(pair):
    for message in (b"one", "two", b"\0\xff", bytearray(b"three")):
        pair.near.send_notif(pair.far.name, message)
    pair.near.send_notif(pair.far.name.encode(), b"x" * 60_000, "UCX")
    got: list[bytes] = []
    eventually(lambda: got.extend(pair.far.get_new_notifs().get(pair.near.name, [])) or len(got) == 5)
    assert got == [b"one", b"two", b"\0\xff", b"three", b"x" * 60_000]
    assert pair.far.get_new_notifs() == {}


def test_notifications_of_any_length(pair):
    long = bytes(range(256)) * 1000
    pair.near.send_notif(pair.far.name, long)
    local, remote = pair.sides()
    handle = pair.near.make_prepped_xfer("WRITE", local, [0], remote, [0], notif_msg=long[1:])
    finish(pair.near, handle, pair.near.transfer(handle))
    finish(pair.near, handle, pair.near.transfer(handle, long[2:]))
    got: list[bytes] = []
    eventually(lambda: got.extend(pair.far.get_new_notifs().get(pair.near.name, [])) or len(got) == 3)
    assert got == [long, long[1:], long[2:]]


def test_kept_notifications(pair):
    pair.near.send_notif(pair.far.name, b"request-1 done")
    pair.near.send_notif(pair.far.name, b"request-2 done")
    eventually(lambda: len(pair.far.update_notifs().get(pair.near.name, [])) == 2)
    check = pair.far.check_remote_xfer_done
    assert not check(pair.near.name, b"done")
    assert not check("nobody", b"request-1")
    assert check(pair.near.name, b"2 do", tag_is_prefix=False)
    assert check(pair.near.name, b"")
    assert not check(pair.near.name, b"")


def test_a_map_of_notifications_is_added_to(pair):
    pair.near.send_notif(pair.far.name, b"new")
    before = {pair.near.name: [b"old"], "other": [b"x"]}
    after = eventually(lambda: len((m := pair.far.agent.getNotifs(before))[pair.near.name]) == 2 and m)
    assert after == {pair.near.name: [b"old", b"new"], "other": [b"x"]}
    assert before == {pair.near.name: [b"old"], "other": [b"x"]}


# ---- metadata


def test_partial_metadata(make_agent):
    near, far = make_agent("near"), make_agent("far")
    told, untold = stamped(1, 4096, 1), stamped(1, 4096, 2)
    told_memory, untold_memory = register(far, told), register(far, untold)
    near.add_remote_agent(far.get_partial_agent_metadata(told_memory, True, ["UCX"]))
    assert near.check_remote_metadata(far.name)
    assert near.check_remote_metadata(far.name, told_memory.trim())
    assert not near.check_remote_metadata(far.name, untold_memory.trim())
    near.add_remote_agent(far.get_partial_agent_metadata(untold_memory))
    assert near.check_remote_metadata(far.name, untold_memory.trim())


def test_connection_info_alone(make_agent):
    near, far = make_agent("near"), make_agent("far")
    near.add_remote_agent(far.get_partial_agent_metadata(_bindings.nixlRegDList(_bindings.DRAM_SEG), True))
    near.make_connection(far.name)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_metadata_goes_through_the_listener(make_agent, free_port, address):
    far = make_agent("far", enable_listen_thread=True, listen_port=free_port)
    near = make_agent("near")
    memory = stamped(1, 4096, 1)
    far_memory = register(far, memory)
    near.fetch_remote_metadata(far.name, address, free_port)
    eventually(lambda: near.check_remote_metadata(far.name, far_memory.trim()))
    assert not far.check_remote_metadata(near.name)
    near.send_local_metadata(address, free_port)
    eventually(lambda: far.check_remote_metadata(near.name))
    near.invalidate_local_metadata(address, free_port)
    eventually(lambda: not far.check_remote_metadata(near.name))


def test_partial_metadata_goes_through_the_listener(make_agent, free_port):
    far = make_agent("far", enable_listen_thread=True, listen_port=free_port)
    near = make_agent("near")
    memory = stamped(2, 4096, 1)
    told, untold = register(near, memory[:1]), register(near, memory[1:])
    near.send_partial_agent_metadata(told, True, ["UCX"], "127.0.0.1", free_port)
    eventually(lambda: far.check_remote_metadata(near.name, told.trim()))
    assert not far.check_remote_metadata(near.name, untold.trim())


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ---- backends


def test_plugins_tell_what_they_take(make_agent):
    agent = make_agent(backends=[])
    assert "UCX" in agent.get_plugin_list()
    assert "DRAM" in " ".join(agent.get_plugin_mem_types("UCX"))
    assert isinstance(agent.get_plugin_params("UCX"), dict)
    assert agent.get_backend_params("UCX") == {}
    assert agent.get_backend_mem_types("UCX") == []
    agent.create_backend("UCX", agent.get_plugin_params("UCX"))
    assert agent.get_backend_mem_types("UCX") == agent.get_plugin_mem_types("UCX")
    assert agent.get_plugin_params("UVX") == {} and agent.get_plugin_mem_types("UVX") == []


@pytest.mark.parametrize("backend", ["MOONCAKE", "UCCL", "GDS", "GDS_MT"])
def test_plugins_that_are_not_here_are_not_listed_and_refused(make_agent, backend):
    agent = make_agent(backends=[])
    assert backend not in agent.get_plugin_list()
    with pytest.raises(nixl._bindings.nixlNotFoundError, match="ask for|which needs|there is no libplugin_"):
        agent.create_backend(backend)


def test_every_plugin_may_be_created_at_once():
    agent = nixl.nixl_agent(fresh("all"), instantiate_all=True)
    assert "UCX" in agent.backends
    assert set(agent.backends) <= set(agent.plugin_list)


def test_files_are_queried(make_agent, tmp_path):
    agent = make_agent(backends=[])
    if "POSIX" not in agent.get_plugin_list():
        pytest.skip("there is no POSIX among the plugins yet")
    agent.create_backend("POSIX")
    (tmp_path / "there").write_bytes(b"12345")
    files = [(0, 0, 0, str(tmp_path / "there")), (0, 0, 0, str(tmp_path / "not there"))]
    there, absent = agent.query_memory(files, "POSIX", "FILE")
    assert (there["size"], absent) == ("5", None)
    with pytest.raises(ValueError):
        agent.query_memory(files, "GDS", "FILE")


@pytest.mark.parametrize("threads", ["auto", "1"])
@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_large_request_within_a_host_is_whole_before_its_notification(make_agent, start_far, operation, threads):
    """By default two engines share its work, and the notification follows the last of both."""
    near, far = make_agent("near", backends=[]), start_far(pages=16, page_bytes=1 << 20)
    near.create_backend("UCX", {"towline_threads": threads})
    mine = stamped(16, 1 << 20, 0)
    register(near, mine)
    far.ask("add", near.get_agent_metadata())
    near.add_remote_agent(far.metadata)
    ours, theirs = near.get_xfer_descs(rows(mine), "DRAM"), far.descs(near)
    handle = near.initialize_xfer(operation, ours, theirs, far.name, b"whole")
    for _ in range(2):
        state = near.transfer(handle)
        assert far.ask("notifications", 1) == [b"whole"]
        if operation == "WRITE":
            assert (far.ask("pages") == mine).all()
        finish(near, handle, state)
        assert operation == "WRITE" or (mine == stamped(16, 1 << 20, 1000)).all()
        mine[:] = stamped(16, 1 << 20, 5000)

"""Bad input gives its own clear error."""

from __future__ import annotations

import contextlib
import pickle
import socket
import time

import numpy as np
import pytest

import towline
from conftest import TIMEOUT
from towline import Status


def test_every_status_has_a_name_and_errors_fit_builtin_ones():
    assert Status.OK == 0 and Status(-14) is Status.TIMED_OUT and Status.PEER_LOST.name == "PEER_LOST"
    for kind, builtin in [
        (towline.TimedOut, TimeoutError),
        (towline.InvalidArgument, ValueError),
        (towline.Mismatch, ValueError),
        (towline.OutOfRange, IndexError),
        (towline.PermissionDenied, PermissionError),
        (towline.PeerLost, ConnectionError),
        (towline.PeerRestarted, towline.PeerLost),
        (towline.Unreachable, ConnectionError),
        (towline.AddressInUse, OSError),
        (towline.OutOfMemory, MemoryError),
    ]:
        assert issubclass(kind, builtin) and issubclass(kind, towline.Error)
        error = pickle.loads(pickle.dumps(kind("what was tried", Status.BUSY)))
        assert (type(error), str(error), error.status) == (kind, "what was tried", Status.BUSY)
        assert kind("x").status == kind.status


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": ""}, towline.InvalidArgument),
        ({"name": "a\0b"}, towline.InvalidArgument),
        ({"name": "x" * 256}, towline.Error),
        ({"name": 5}, towline.InvalidArgument),
        ({"name": "x", "progress": "sometimes"}, towline.InvalidArgument),
        ({"name": "x", "workers": 99}, towline.Error),
        ({"name": "x", "listen": "nonsense"}, towline.Error),
        ({"name": "x", "backends": ["warp"]}, towline.Error),
        ({"name": "x", "workers": -1}, towline.InvalidArgument),
        ({"name": "x", "config": "= ="}, towline.Error),
        ({"name": "x", "config": 5}, towline.InvalidArgument),
        ({"name": "x", "config": {"peer": {"lost": None}}}, towline.InvalidArgument),
        ({"name": "x", "config": {"peer.lost": "soon"}}, towline.InvalidArgument),
        ({"name": "x", "config": {"log.level": "loud"}}, towline.InvalidArgument),
        ({"name": "x", "default_timeout": -1}, towline.InvalidArgument),
        ({"name": "x", "default_timeout": "soon"}, TypeError),
    ],
    ids=str,
)
def test_agents_refuse_nonsense(arguments, error):
    with pytest.raises(error) as raised:
        towline.Agent(**{"listen": "none", **arguments}).close()
    assert str(raised.value)


def test_settings_come_as_text_or_mappings(make_agent, capfd):
    import pathlib

    for config in (
        'peer.lost = "20s"\ntuning.tcp.sockets = 2\n',
        {"peer.lost": "20s", "tuning.tcp.sockets": 2, "tcp.checksum": True},
        {"peer": {"lost": "20s"}, "tuning": {"tcp": {"sockets": 2}}, "shm": {"socket_dir": pathlib.Path("/tmp")}},
        {"plugins": [], "tuning.shm.paths": ("mapped", "ring")},
        {"object.region": "here", "tuning.collectives.flat_bytes": "64KiB", "tuning.etcd.lease": "10s", "listen": "*:0"},
        {"backends": "tcp", "tuning.cuda.blocks": 8, "tuning.posix.threads": 2},
    ):
        make_agent(config=config).close()
    assert capfd.readouterr().err == ""
    with pytest.raises(ValueError, match="set by the program: unknown setting peer.los; peer.lost is the nearest"):
        make_agent(config={"peer": {"los": "20s"}})


def test_objects_say_what_they_are(pair):
    region, blocks = pair.my_region, pair.their_blocks
    assert repr(region) == f"Region(key={region.key}, address={region.address:#x}, nbytes=65536, kind='dram')"
    assert repr(pair.my_blocks) == "BlockList(blocks=16, nbytes=65536, peer=None)"
    assert repr(blocks) == f"BlockList(blocks=16, nbytes=65536, peer={pair.peer!r})"
    move = pair.write()
    assert repr(move) == "Transfer(nbytes=65536, posted=False)"
    status = move.wait(TIMEOUT)
    assert repr(move) == "Transfer(nbytes=65536, status=OK)"
    assert str(status) == f"{status}" == "Status.OK" and f"{status:d}" == "0"
    counter = pair.near.counter(5)
    assert repr(counter) == f"Counter(key={counter.key}, value=5)"
    memory = pair.near.allocate(4096)
    assert repr(memory) == f"Memory(address={memory.address:#x}, nbytes=4096)"
    memory.free()
    assert repr(memory) == "Memory(freed)"
    pair.near.close()
    for thing in (region, blocks, pair.my_blocks, move, counter):
        assert type(thing).__name__ in repr(thing)
    region.deregister()
    assert repr(region) == "Region(deregistered)"


def test_what_is_no_agent_is_refused():
    """Methods that are called on something else: no guess at what lies in memory there."""
    for call in (
        lambda: towline.Agent.add_peer(5, b"x"),
        lambda: towline.Agent.register(5, bytearray(4)),
        lambda: towline.Agent.allocate(5, 4096),
        lambda: towline.Agent.block_list("text", (1, 2)),
        lambda: towline.Agent.find_peer(None, "x"),
        lambda: towline.Agent.counter(object()),
        lambda: towline.Agent.query_storage(5, "/"),
        lambda: towline.Agent.directory(5, "etcd://x"),
        lambda: towline.Peer.block_list(5, (1, 2)),
    ):
        with pytest.raises(TypeError):
            call()


def test_address_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(towline.AddressInUse):
            towline.Agent("x", listen=f"127.0.0.1:{taken.getsockname()[1]}")


def test_names_may_hold_odd_bytes(make_agent):
    name = b"odd \xff\xfe \n name".decode("utf-8", "surrogateescape")
    odd, other = make_agent(name), make_agent("other")
    assert odd.name == name
    assert other.add_peer(odd.metadata()).name == other.find_peer(name).name == name


def test_unreachable_address_and_unknown_peer(make_agent):
    agent = make_agent()
    with socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))
        address = "%s:%d" % closed_port.getsockname()
        with pytest.raises(ConnectionError, match=address.split(":")[1]):
            agent.connect(address, timeout=TIMEOUT)
    with pytest.raises(LookupError, match="nobody"):
        agent.find_peer("nobody")
    for junk in (b"junk", b"", b"not metadata", agent.metadata()[:-1], agent.metadata() + b"x", bytes(64)):
        with pytest.raises(ValueError):
            agent.add_peer(junk)
    with pytest.raises(TypeError):
        agent.add_peer(5)


@pytest.mark.parametrize("memory", [5, "text", None, (1,), (1, 2, 3, 4), (-1, 5), (0, 0), object()], ids=repr)
def test_what_is_no_memory_is_refused(make_agent, memory):
    with pytest.raises((towline.Error, TypeError)) as raised:
        make_agent().register(memory)
    assert str(raised.value)


def test_wrong_access_kind_and_shape(make_agent):
    agent = make_agent()
    array = np.zeros((4, 1024), np.uint32)
    for options in ({"access": "execute"}, {"kind": "tape"}):
        with pytest.raises(ValueError):
            agent.register(array, **options)
    with pytest.raises(towline.Error):
        agent.block_list(array)  # not registered
    _region = agent.register(array)
    for source, options in [
        (array, {"page_dim": 2}),
        (array[::-1], {}),
        (object(), {}),
        ([object()], {}),
        ([(1, 2, 3, 4)], {}),
        (np.zeros(()), {}),
    ]:
        with pytest.raises(towline.Error):
            agent.block_list(source, **options)
    with pytest.raises(towline.Error):
        agent.block_list(towline.Blocks(array.ctypes.data, 4096, (5, 4096)))  # past the end
    with pytest.raises(ValueError):
        towline.Blocks(-1, 5)
    with pytest.raises(towline.LimitExceeded):
        towline.Blocks(0, 1, *[(1, 1)] * 5)


@pytest.mark.parametrize(
    ("picks", "error"),
    [
        ([16], IndexError),
        ([-1], IndexError),
        (-17, IndexError),
        (range(-2, 0), IndexError),
        (np.array([0, 16]), IndexError),
        (np.array([0, -1], np.int32), IndexError),
        (np.array([0, -1], np.int64), IndexError),
        ([0.5], TypeError),
        ([True, False], ValueError),
        (np.array([0.5]), ValueError),
        (np.array([1, 2], np.int16), ValueError),
        (np.array([1, 2], ">i4"), ValueError),
        (np.array([[1], [2]]), ValueError),
        (np.ones(16, bool), ValueError),
        (b"1234", ValueError),
        ("text", ValueError),
        ({1, 2}, ValueError),
    ],
    ids=repr,
)
def test_bad_picks(pair, picks, error):
    with pytest.raises(error):
        pair.write([0, 1], picks)
    with pytest.raises(error):
        pair.write(picks, [0, 1])


def test_transfers_that_do_not_fit(make_agent, pair):
    with pytest.raises(towline.Mismatch):
        pair.write([0], [0, 1])
    with pytest.raises(towline.InvalidArgument, match="both lists are of peers"):
        pair.near.transfer(pair.their_blocks, pair.their_blocks)
    with pytest.raises(towline.Error, match="warp"):
        pair.write(backend="warp")
    with pytest.raises(towline.InvalidArgument):
        make_agent().transfer(pair.my_blocks, pair.their_blocks)
    with pytest.raises(towline.InvalidArgument, match="not NoneType"):
        pair.near.transfer(None, pair.their_blocks)
    with pytest.raises(towline.LimitExceeded):
        pair.write(notice=bytes(65537))


@pytest.mark.parametrize(
    "options",
    [{"counter": "x"}, {"counter": -1}, {"counter": 1.5}, {"counter": (1,)}, {"counter": (1, "x")}, {"workers": -1}],
    ids=repr,
)
def test_bad_options_of_transfers(pair, options):
    with pytest.raises((ValueError, TypeError)) as raised:
        pair.write(**options)
    assert "bad_cast" not in str(raised.value)


def test_what_is_of_another_kind_is_refused_by_name(pair):
    near, array = pair.near, np.zeros((4, 1024), np.uint8)
    for call, error, says in (
        (lambda: near.metadata([5]), towline.InvalidArgument, "regions are Regions of the agent, not int"),
        (lambda: near.metadata("x"), towline.InvalidArgument, "regions are Regions of the agent, not str"),
        (lambda: near.publish("etcd://127.0.0.1:1", regions=[5]), towline.InvalidArgument, "Regions of the agent, not int"),
        (lambda: near.block_list(pair.mine, page_dim="a"), TypeError, "integer"),
        (lambda: near.block_list(pair.mine, page_dim=1 << 40), towline.InvalidArgument, "page_dim is an integer"),
        (lambda: near.register(array, name="paged", page_dim="a"), TypeError, "integer"),
    ):
        with pytest.raises(error, match=says):
            call()


def test_numbers_may_be_numpys(make_agent):
    agent = make_agent()
    array = np.zeros(8192, np.uint8)
    region = agent.register((np.uint64(array.ctypes.data), np.int64(8192)))
    assert (region.address, region.nbytes) == (array.ctypes.data, 8192)
    with pytest.raises(ValueError):
        towline.Blocks.__new__(towline.Blocks).__setstate__((1,))


def test_waits_that_give_up(pair):
    counter = pair.near.counter(7)
    assert (counter.value, counter.wait(7, 0)) == (7, 7)
    with pytest.raises(TimeoutError):
        counter.wait(8, timeout=0.01)
    assert pair.near.receive(timeout=0) is None
    assert pair.near.receive(timeout=0.01) is None
    move = pair.write()
    with pytest.raises(towline.NotFound, match="never posted"):
        move.poll()
    for nonsense in (-1, float("nan")):
        with pytest.raises(ValueError):
            move.wait(nonsense)
    assert move.wait(float("inf")) == Status.OK
    move.wait_fenced("both", 1)
    with pytest.raises(ValueError):
        move.wait_fenced("none")


def test_closed_agent_refuses_everything(pair):
    move = pair.write()
    pair.near.close()
    pair.near.close()
    assert pair.near.closed and repr(pair.near) == "Agent(closed)"
    for call in (
        lambda: pair.near.name,
        lambda: pair.near.receive(),
        lambda: pair.near.register(bytearray(8)),
        lambda: pair.near.info(),
        lambda: pair.near.event_fd,
        lambda: pair.near.connect("127.0.0.1:1"),
        lambda: pair.peer.send(b"x"),
        lambda: move.post(),
        lambda: pair.write(),
    ):
        with pytest.raises(towline.Closed):
            call()
    pair.my_region.deregister()


def test_removed_peer_is_stale(pair):
    move = pair.write()
    pair.peer.remove()
    for call in (lambda: pair.peer.name, lambda: move.post(), lambda: pair.peer.send(b"x")):
        with pytest.raises(towline.Error) as raised:
            call()
        assert raised.value.status == Status.STALE
    assert repr(pair.peer) == "Peer(removed)"


def test_a_transfer_fails_with_the_sentence_of_a_post(pair):
    move = pair.write(backend="tcp")
    plan = pair.near.plan(pair.my_blocks, pair.their_blocks, backend="tcp")
    assert move.wait(TIMEOUT) == Status.OK and plan.post().result(TIMEOUT)
    pair.peer.remove()
    end = time.monotonic() + TIMEOUT
    refused = False
    while not refused and time.monotonic() < end:
        try:
            post = plan.post()
        except towline.Error:
            refused = True
            continue
        with contextlib.suppress(towline.Error):  # taken before the worker has heard of the removal, it fails later
            post.poll()
    with pytest.raises(towline.Error, match="peer 'far' over tcp was refused: ") as of_post:
        plan.post()
    with pytest.raises(towline.Error) as of_move:
        move.post()
    assert str(of_move.value) == str(of_post.value)
    assert of_move.value.peer is pair.peer and of_move.value.result is not None


def test_what_is_can_be_asked(pair):
    pair.write(backend="tcp").wait(TIMEOUT)
    assert {"shm", "tcp"} <= {backend["name"] for backend in pair.near.info()["backends"]}
    assert pair.near.metrics()
    assert pair.peer.health == "alive" and pair.peer.incarnation == pair.far.incarnation
    assert "near" in repr(pair.near) and "far" in repr(pair.peer)


def test_what_belongs_to_a_process_is_not_pickled(pair):
    plan = pair.near.plan(pair.my_blocks, pair.their_blocks)
    for one in (pair.near, pair.my_region, pair.peer, pair.my_blocks, plan, pair.near.counter()):
        with pytest.raises(TypeError, match=r"belong to their process.*metadata\(\)"):
            pickle.dumps(one)

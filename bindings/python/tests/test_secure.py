"""Connections with keys: docs/security.md."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import towline

from conftest import Pair


@pytest.fixture
def keys(tmp_path):
    """The configuration that names a key of this letter; skips where there is no TLS."""

    def config(letter: str = "k") -> dict:
        file = tmp_path / f"{letter}.key"
        file.write_text(letter * 40 + "\n")
        return {"secure.key_file": str(file), "backends": "tcp"}

    try:
        towline.Agent("probe", listen="none", config=config()).close()
    except (towline.Unsupported, towline.NotFound) as error:
        pytest.skip(f"no TLS here: {error}")
    return config


def test_pages_move_with_the_same_key(make_agent, keys):
    pair = Pair(make_agent, config=keys())
    pair.near.copy(pair.my_blocks[[3, 1]], pair.their_blocks[[10, 11]]).result(timeout=30)
    assert (pair.theirs[10] == 3).all() and (pair.theirs[11] == 1).all()
    move = pair.write([0], [0])
    assert "TLS" in str(move.route())
    assert pair.near.info()["secure"].startswith("TLS 1.3, a shared key")


def test_connecting_needs_the_same_key(make_agent, keys):
    served = make_agent("served", config=keys("k"))
    with pytest.raises(towline.PermissionDenied, match=r"other keys \(secure\.\*\)"):
        make_agent("other", config=keys("l")).connect(served.address)
    with pytest.raises(towline.PermissionDenied, match=r"no keys \(secure\.\*\)"):
        make_agent("none", config={"backends": "tcp"}).connect(served.address)
    with pytest.raises(towline.PermissionDenied, match="or none"):
        make_agent("strict", config=keys("k")).connect(make_agent("open", config={"backends": "tcp"}).address)
    assert make_agent("same", config=keys("k")).connect(served.address).name == "served"


def test_a_transfer_to_who_has_another_key_says_so(make_agent, keys):
    near, far = make_agent("near", config=keys("k")), make_agent("far", config=keys("l"))
    mine, theirs = np.zeros((1, 4096), np.uint8), np.ones((1, 4096), np.uint8)
    own = near.register(mine)
    region = far.register(theirs, access="read")
    peer = near.add_peer(far.metadata())  # metadata by other means than the listener
    blocks = peer.block_list(towline.Blocks(region.address, 4096))
    with pytest.raises(towline.Error, match=r"other keys \(secure\.\*\)"):
        near.copy(blocks, near.block_list(mine)).result(timeout=30)
    assert own and not mine.any()


def test_connecting_is_awaitable(make_agent, keys):
    served, asks = make_agent("served", config=keys()), make_agent("asks", config=keys())

    async def connect():
        return await asks.connect_async(served.address)

    assert asyncio.run(connect()).name == "served"


@pytest.mark.parametrize(
    "setting, text",
    [
        ({"secure.key_file": "/no/such/key"}, r'secure\.key_file = "/no/such/key"'),
        ({"secure.certificate_file": "/no/such/certificate"}, r'secure\.certificate_file = "/no/such/certificate"'),
    ],
)
def test_wrong_keys_are_named(make_agent, keys, setting, text):
    with pytest.raises(towline.Error, match=text):
        make_agent("agent", config=setting)


def test_rdma_is_left_out_unless_it_is_named(make_agent, keys):
    agent = make_agent("agent", config={key: value for key, value in keys().items() if key != "backends"})
    rdma = next(entry for entry in agent.info()["backends"] if entry["name"] == "rdma")
    assert not rdma["usable"] and "secure.*" in rdma["reason"]

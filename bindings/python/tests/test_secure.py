"""Connections with keys: docs/security.md."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

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


def test_a_fleet_changes_its_key_without_a_pause(make_agent, keys, tmp_path):
    file = tmp_path / "rolled.key"
    old, new = "k" * 40 + "\n", "l" * 40 + "\n"
    file.write_text(old)
    config = {**keys("k"), "secure.key_file": str(file)}
    served = make_agent("served", config=config)
    for step, text in enumerate((old + new, new + old, new)):
        file.write_text(text)
        make_agent(f"rolled-{step}", config=config).connect(served.address)  # looks at the file for both
    with pytest.raises(towline.PermissionDenied):
        make_agent("late", config=keys("k")).connect(served.address)


@pytest.fixture
def certificates(tmp_path):
    """The configuration of an agent whose certificate has these names."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl program, which makes the certificates, is not there")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=tmp_path, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *curve, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")

    def config(name: str, names: str, peers: list[str]) -> dict:
        (tmp_path / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        run("req", *curve, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
        return {
            "backends": "tcp",
            "secure.certificate_file": str(tmp_path / f"{name}.pem"),
            "secure.private_key_file": str(tmp_path / f"{name}.key"),
            "secure.authority_file": str(tmp_path / "ca.pem"),
            "secure.peers": peers,
        }

    return config


def test_certificates_are_taken_by_name(make_agent, keys, certificates):
    roles = ["prefill-*.example.com", "spiffe://example.com/ns/serving/*"]
    served = make_agent("served", config=certificates("served", "DNS:prefill-0.example.com", roles))
    worker = make_agent("worker", config=certificates("worker", "URI:spiffe://example.com/ns/serving/decode", roles))
    assert worker.connect(served.address).name == "served"
    assert "prefill-*.example.com" in worker.info()["secure"]
    web = make_agent("web", config=certificates("web", "DNS:web.example.com", []))
    with pytest.raises(towline.PermissionDenied, match=r"this side's certificate, of DNS:web\.example\.com"):
        web.connect(served.address)
    with pytest.raises(towline.PermissionDenied, match=r"DNS:web\.example\.com; secure\.peers takes prefill-\*"):
        worker.connect(web.address)


def test_rdma_is_left_out_unless_it_is_named(make_agent, keys):
    agent = make_agent("agent", config={key: value for key, value in keys().items() if key != "backends"})
    rdma = next(entry for entry in agent.info()["backends"] if entry["name"] == "rdma")
    assert not rdma["usable"] and "secure.*" in rdma["reason"]

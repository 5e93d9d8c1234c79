"""Objects as regions, of a real S3 server in a process of its own."""

from __future__ import annotations

import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import time

import pytest

import towline
from conftest import TIMEOUT, stamped

PAGES, PAGE_BYTES = 16, 4096
BYTES = PAGES * PAGE_BYTES
KEYS = {"access_key": "test", "secret_key": "testtest1"}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    kept = pathlib.Path.home() / ".cache/towline/bin/versitygw"
    program = str(kept) if kept.exists() else shutil.which("versitygw")
    if program is None:
        pytest.skip("there is no versitygw here: scripts/install-deps test installs it where there is Go")
    folder = tmp_path_factory.mktemp("s3")
    (folder / "bucket").mkdir()
    port = free_port()
    server = subprocess.Popen(
        [program, "--port", f"127.0.0.1:{port}", "--region", "us-east-1", "-q", "posix", str(folder)],
        env={**os.environ, "ROOT_ACCESS_KEY": KEYS["access_key"], "ROOT_SECRET_KEY": KEYS["secret_key"]},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + TIMEOUT
        while True:
            assert server.poll() is None and time.monotonic() < until, "the S3 server does not start"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                select.select([], [], [], 0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


@pytest.fixture
def agent(make_agent, endpoint):
    settings = "\n".join(f'{name} = "{value}"' for name, value in {"endpoint": endpoint, **KEYS}.items())
    return make_agent("objects", listen="none", config=f'plugins = "object"\n[object]\n{settings}\n')


@pytest.fixture
def pages(agent):
    array = stamped(PAGES, PAGE_BYTES, 0)
    region = agent.register(array, access="rw")
    yield array
    del region


def whole(agent, object):
    return agent.block_list(object.blocks(0, PAGE_BYTES, (PAGES, PAGE_BYTES)))


def test_an_object_is_written_read_and_found(agent, pages):
    object = agent.register_storage("s3://bucket/dir/a b", create=True, nbytes=BYTES)
    assert (object.kind, object.nbytes) == ("object", BYTES)
    mine = agent.block_list(pages)
    agent.transfer(mine, whole(agent, object)).wait(TIMEOUT)
    pages[:] = 77
    agent.transfer(whole(agent, object)[[11, 0]], mine[[3, 5]]).wait(TIMEOUT)
    assert (pages[3] == 11).all() and (pages[5] == 0).all() and (pages[4] == 77).all()
    info = agent.query_storage("s3://bucket/dir/a b")
    assert (info.kind, info.nbytes) == ("object", BYTES) and abs(info.modified_ns / 1e9 - time.time()) < 3600
    assert agent.query_storage("s3://bucket/absent") is None


def test_what_there_is_is_listed(agent, pages):
    mine = agent.block_list(pages)
    for name in ("one", "three", "two"):
        object = agent.register_storage(f"s3://bucket/list/{name}", create=True, nbytes=BYTES)
        agent.transfer(mine, whole(agent, object)).wait(TIMEOUT)
    found = agent.list_storage("s3://bucket/list/")
    assert [uri for uri, _ in found] == [f"s3://bucket/list/{name}" for name in ("one", "three", "two")]
    assert {info.nbytes for _, info in found} == {BYTES}
    assert [uri for uri, _ in agent.list_storage("s3://bucket/list/", limit=2)] == [uri for uri, _ in found[:2]]
    assert agent.list_storage("s3://bucket/list/t", limit=0) == []
    with pytest.raises(towline.Unsupported, match="list"):
        agent.list_storage("file:/tmp/")


def test_a_replacement_appears_at_commit(agent, pages):
    name = "s3://bucket/replaced"
    anew = agent.register_storage(name, replace=True, nbytes=BYTES)
    agent.transfer(agent.block_list(pages), whole(agent, anew)).wait(TIMEOUT)
    assert agent.query_storage(name) is None
    anew.commit(timeout=TIMEOUT)
    assert agent.query_storage(name).nbytes == BYTES


def test_a_conditional_write_sees_what_others_did(agent, pages):
    name = "s3://bucket/conditional"
    mine = agent.block_list(pages)
    first = agent.register_storage(name, create=True, conditional=True, nbytes=BYTES)
    second = agent.register_storage(name, create=True, nbytes=BYTES)
    agent.transfer(mine, whole(agent, second)).wait(TIMEOUT)
    with pytest.raises(towline.Stale):
        agent.transfer(mine, whole(agent, first)).wait(TIMEOUT)


def test_an_agent_that_lives_learns_of_objects(make_agent, endpoint):
    settings = "\n".join(f'{name} = "{value}"' for name, value in {"endpoint": endpoint, **KEYS}.items())
    late = make_agent("late", listen="none", config=f"[object]\n{settings}\n")
    array = stamped(PAGES, PAGE_BYTES, 0)
    region = late.register(array, access="rw")
    with pytest.raises(towline.Unsupported):
        late.register_storage("s3://bucket/late", create=True, nbytes=BYTES)
    late.add_backend("object")
    object = late.register_storage("s3://bucket/late", create=True, nbytes=BYTES)
    late.transfer(late.block_list(array), whole(late, object)).wait(TIMEOUT)
    expected = array.copy()
    array[:] = 0
    late.transfer(whole(late, object), late.block_list(array)).wait(TIMEOUT)
    assert (array == expected).all()
    with pytest.raises(towline.Error) as caught:
        late.add_backend("object")
    assert caught.value.status == towline.Status.ALREADY_EXISTS
    with pytest.raises(towline.Error, match="no-such-plugin"):
        late.add_backend("no-such-plugin")
    del region


def test_what_can_not_be_is_refused(agent, make_agent):
    with pytest.raises(towline.NotFound, match="absent"):
        agent.register_storage("s3://bucket/absent")
    with pytest.raises(towline.Error, match="no-such-bucket"):
        agent.register_storage("s3://no-such-bucket/key", create=True, nbytes=1)
    bare = make_agent("bare", listen="none")
    with pytest.raises(towline.Unsupported, match='plugins = "object"'):
        bare.register_storage("s3://bucket/key")

"""Files as regions."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import towline
from conftest import TIMEOUT, run_script, stamped

PAGES, PAGE_BYTES = 16, 4096
BYTES = PAGES * PAGE_BYTES


class Store:
    """An agent with pages of memory, each stamped with its number, and a folder."""

    def __init__(self, make_agent, folder) -> None:
        self.agent = make_agent("store", listen="none")
        self.folder = folder
        self.array = stamped(PAGES, PAGE_BYTES, 0)
        self.region = self.agent.register(self.array, access="rw")
        self.mine = self.agent.block_list(self.array)

    def pages(self, file: towline.Region) -> towline.BlockList:
        return self.agent.block_list(file.blocks(0, PAGE_BYTES, (PAGES, PAGE_BYTES)))

    def write(self, file: towline.Region, mine=None, theirs=None) -> None:
        self.agent.transfer(self.mine[mine], self.pages(file)[theirs]).wait(TIMEOUT)

    def read(self, file: towline.Region, mine=None, theirs=None) -> None:
        self.agent.transfer(self.pages(file)[theirs], self.mine[mine]).wait(TIMEOUT)


@pytest.fixture
def store(make_agent, tmp_path):
    return Store(make_agent, tmp_path)


@pytest.mark.parametrize("options", [{}, {"direct": True}, {"sync": "data"}, {"sync": "full", "direct": True}], ids=str)
def test_picked_pages_go_to_a_file_and_back(store, options):
    path = store.folder / "cache"
    try:
        file = store.agent.register_storage(path, create=True, nbytes=BYTES, **options)
    except towline.Unsupported as error:
        pytest.skip(str(error))
    assert (file.kind, file.nbytes, file.owner) == ("file", BYTES, None)
    store.write(file)
    assert (np.fromfile(path, np.uint32).reshape(PAGES, -1) == store.array).all()
    store.array[:] = 77
    store.read(file, [3, 5], [11, 0])
    assert (store.array[3] == 11).all() and (store.array[5] == 0).all() and (store.array[4] == 77).all()


@pytest.mark.parametrize("form", ["str", "path", "bytes", "uri", "descriptor", "open"])
def test_files_are_named_in_many_forms(store, form):
    path = store.folder / "a:b #?%41"
    store.array.tofile(path)
    opened = path.open("rb")
    forms = {
        "str": str(path),
        "path": path,
        "bytes": os.fsencode(path),
        "uri": f"file:{path}",
        "descriptor": opened.fileno(),
        "open": opened,
    }
    file = store.agent.register_storage(forms[form])
    opened.close()
    store.array[:] = 0
    store.read(file)
    assert (store.array == stamped(PAGES, PAGE_BYTES, 0)).all()


def test_a_replacement_appears_at_commit(store):
    path = store.folder / "weights"
    path.write_bytes(b"old")
    file = store.agent.register_storage(path, replace=True, nbytes=BYTES)
    store.write(file)
    assert path.read_bytes() == b"old"
    file.commit()
    assert path.stat().st_size == BYTES
    with pytest.raises(towline.Error) as raised:
        file.commit(timeout=TIMEOUT)
    assert raised.value.status == towline.Status.ALREADY_EXISTS
    dropped = store.agent.register_storage(path, replace=True, nbytes=BYTES)
    dropped.deregister()
    assert os.listdir(store.folder) == ["weights"]
    with pytest.raises(towline.Stale):
        dropped.commit()


def test_what_is_there_is_told(store):
    path = store.folder / "file"
    assert store.agent.query_storage(path) is None
    path.write_bytes(b"12345")
    info = store.agent.query_storage(path)
    assert (info.kind, info.nbytes, info.modified_ns) == ("file", 5, path.stat().st_mtime_ns)
    assert "nbytes=5" in repr(info)
    with pytest.raises(towline.InvalidArgument, match="directory"):
        store.agent.query_storage(store.folder)


def test_what_can_not_be_is_refused(store):
    path = store.folder / "file"
    register = store.agent.register_storage
    with pytest.raises(towline.NotFound, match=str(path)):
        register(path)
    path.write_bytes(b"x" * PAGE_BYTES)
    for options in ({"sync": "often"}, {"access": "some"}):
        with pytest.raises(towline.InvalidArgument, match=next(iter(options))):
            register(path, **options)
    for name, values in {"nbytes": (-1, 2**64), "mode": (-1, 0o10000, 2**64)}.items():
        for value in values:
            with pytest.raises(towline.InvalidArgument, match=f"{name} is an integer from 0 to"):
                register(path, **{name: value})
    with pytest.raises(towline.InvalidArgument, match="bytes is an integer from 0 to"):
        store.agent.allocate(-1)
    with pytest.raises(towline.InvalidArgument, match="limit is an integer from 0 to"):
        store.agent.list_storage("s3://bucket/", limit=-1)
    for offset, length, name in ((-1, 8, "offset"), (0, 2**64, "length")):
        with pytest.raises(towline.InvalidArgument, match=f"{name} is an integer from 0 to"):
            register(path).blocks(offset, length)
    with pytest.raises(towline.InvalidArgument, match="float"):
        register(1.5)
    with pytest.raises(towline.Unsupported, match="nowhere"):
        register("nowhere://bucket/key")
    with pytest.raises(towline.PermissionDenied):
        with path.open("rb") as reading:
            register(reading, access="all")
    file = register(path)
    with pytest.raises(towline.PermissionDenied):
        store.agent.transfer(store.mine[0], store.agent.block_list(file.blocks(0, PAGE_BYTES))[0])
    with pytest.raises(towline.OutOfRange):
        store.agent.block_list(file.blocks(0, PAGE_BYTES + 1))
    with pytest.raises(towline.InvalidArgument, match="commit|file|storage"):
        store.region.commit()


def test_a_short_read_names_its_blocks(store):
    path = store.folder / "file"
    path.write_bytes(bytes(BYTES))
    file = store.agent.register_storage(path)
    move = store.agent.transfer(store.pages(file), store.mine)
    os.truncate(path, 3 * PAGE_BYTES)
    with pytest.raises(towline.Error):
        move.wait(TIMEOUT)
    first, count, _, _ = move.result.failed[0]
    assert first <= 3 < first + count


def test_blocks_of_memory_count_from_its_start(store):
    assert store.region.blocks(PAGE_BYTES, 16) == towline.Blocks(store.array.ctypes.data + PAGE_BYTES, 16)


def test_threads_commit_while_others_run(store):
    file = store.agent.register_storage(store.folder / "file", create=True, nbytes=BYTES)
    failures = []

    def work() -> None:
        try:
            for _ in range(20):
                file.commit()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        store.write(file)
    for thread in threads:
        thread.join()
    assert not failures


def test_an_agent_that_ends_first_leaves_no_mess(tmp_path):
    done = run_script(f"""
        import towline
        agent = towline.Agent("first", listen="none")
        file = agent.register_storage({str(tmp_path / "file")!r}, create=True, nbytes=4096)
        agent.close()
        try:
            file.commit()
        except towline.Error as error:
            print(type(error).__name__)
        """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("Closed", "Stale")


def test_pages_of_a_file_have_places_in_a_layout(make_agent, tmp_path):
    agent = make_agent("near")
    cache = np.arange(3 * 8 * 512, dtype=np.uint32).reshape(3, 8, 512)
    kv = agent.register(cache, name="kv", page_dim=1)
    file = agent.register_storage(
        tmp_path / "spilled", create=True, name="spilled", layout=towline.Layout(2048, (3, 8))
    )
    agent.copy(kv[1, [5, 0]], file[2, [7, 1]]).result(20)
    kept = np.fromfile(tmp_path / "spilled", np.uint32)
    assert np.array_equal(kept[(2 * 8 + 7) * 512 :][:512], cache[1, 5])
    assert np.array_equal(kept[(2 * 8 + 1) * 512 :][:512], cache[1, 0])
    agent.copy(file[2, 7], kv[0, 3]).result(20)
    assert np.array_equal(cache[0, 3], cache[1, 5])
    with pytest.raises(towline.InvalidArgument, match="ends beyond the region's"):
        agent.register_storage(tmp_path / "spilled", name="larger", layout=towline.Layout(2048, (4, 8)))

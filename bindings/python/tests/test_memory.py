"""Registration of memory, and the objects that keep it alive."""

from __future__ import annotations

import gc
import mmap
import time
import weakref

import numpy as np
import pytest

import towline
from conftest import TIMEOUT, Pair


class ByDlpack:
    """An array that is reached through DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class ByInterface:
    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__
        self.array = array


class CopiesForDlpack(ByDlpack):
    """Exports a copy that only the capsule holds."""

    def __dlpack__(self, **options):
        copy = self.array.copy()
        self.copy = weakref.ref(copy)
        return copy.__dlpack__(**options)


def test_region_keeps_what_dlpack_exported(make_agent):
    agent = make_agent()
    exporter = CopiesForDlpack(np.full(4096, 7, np.uint8))
    region = agent.register(exporter, access="rw")
    gc.collect()
    assert exporter.copy() is not None and region.address == exporter.copy().ctypes.data
    region.deregister()
    assert exporter.copy() is None


@pytest.mark.parametrize("wrap", [lambda array: array, ByDlpack, ByInterface, memoryview], ids=["numpy", "dlpack", "interface", "buffer"])
def test_memory_and_indices_come_in_many_forms(pair, wrap):
    pages = np.zeros((4, 1024), np.uint32)
    region = pair.near.register(wrap(pages), access="rw")
    assert (region.address, region.nbytes) == (pages.ctypes.data, pages.nbytes)
    mine = pair.near.block_list(wrap(pages))
    assert (mine.blocks, mine.nbytes) == (4, pages.nbytes)
    pair.near.transfer(pair.their_blocks[wrap(np.array([9, 3]))], mine[wrap(np.array([2, 0], np.int32))]).wait(TIMEOUT)
    assert (pages[2] == 1009).all() and (pages[0] == 1003).all() and not pages[1].any()


def test_torch_tensors_register():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with towline.Agent("torch", listen="none") as agent:
        cache = torch.zeros(8, 16, dtype=torch.bfloat16)
        region = agent.register(cache, access="rw")
        blocks = agent.block_list(cache)
        assert (blocks.blocks, blocks.nbytes, region.nbytes) == (8, 256, 256)
        cache[1] = 3
        agent.transfer(blocks[torch.tensor([1, 1])], blocks[torch.tensor([4, 5], dtype=torch.int32)]).wait(TIMEOUT)
        assert (cache[4] == 3).all() and (cache[5] == 3).all()


class FakeTensor:
    """As much of a torch tensor as Towline looks at."""

    class Device:
        type, index = "cpu", None

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.device, self.dtype = array, array.shape, self.Device(), f"torch.{array.dtype}"

    def data_ptr(self):
        return self.array.ctypes.data

    def element_size(self):
        return self.array.itemsize

    def stride(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)


def test_tensors_are_taken_as_torch_shows_them(pair):
    pages = FakeTensor(np.zeros((4, 1024), np.uint32))
    region = pair.near.register(pages, access="rw")
    assert region.owner is pages
    indices = FakeTensor(np.array([3, 1], np.int64))
    pair.near.transfer(pair.their_blocks[[5, 6]], pair.near.block_list(pages)[indices]).wait(TIMEOUT)
    assert (pages.array[3] == 1005).all() and (pages.array[1] == 1006).all()
    pages.device.type = "meta"
    with pytest.raises(towline.Unsupported, match="meta"):
        pair.near.register(pages, access="rw")


def test_allocated_memory_is_a_buffer(make_agent):
    agent = make_agent()
    memory = agent.allocate(8192)
    assert (memory.nbytes, len(memory)) == (8192, 8192) and memory.address % 4096 == 0
    assert not any(memoryview(memory))
    array = memory.numpy("float32", (2, -1))
    array[1] = 2.5
    assert np.frombuffer(memory, "f4")[1024] == 2.5 and array.shape == (2, 1024)
    with pytest.raises(BufferError, match="still use"):
        memory.free()
    del memory
    assert array[1, 5] == 2.5  # the array keeps it
    other = agent.allocate(4096)
    other.free()
    with pytest.raises(BufferError, match="freed"):
        memoryview(other)


def test_region_keeps_its_object_alive_until_it_is_deregistered(make_agent):
    agent = make_agent()
    array = np.zeros(4096, np.uint8)
    alive = weakref.ref(array)
    region = agent.register(array, access="rw")
    assert region.owner is array and region.key != 0
    del array
    gc.collect()
    assert alive() is not None
    region.deregister()
    assert alive() is None
    region.deregister()
    with pytest.raises(towline.Stale):
        region.key
    pinned = bytearray(4096)
    region = agent.register(pinned, access="rw")
    with pytest.raises(BufferError):
        pinned.extend(b"more")  # would move it
    del region
    pinned.extend(b"more")


def test_deregistered_memory_is_refused(pair):
    move = pair.read([0], [0])
    move.wait(TIMEOUT)
    pair.my_region.deregister()
    with pytest.raises(towline.Error) as error:
        move.post()
    assert error.value.status in (towline.Status.STALE, towline.Status.NOT_FOUND)


def test_read_only_memory_is_for_reading(make_agent):
    agent = make_agent()
    with pytest.raises(PermissionError, match="read-only"):
        agent.register(bytes(4096), access="rw")
    assert agent.register(bytes(4096), access="read").nbytes == 4096
    anonymous = mmap.mmap(-1, 8192)
    assert agent.register(anonymous, guarded=True, access="rw").nbytes == 8192


def test_no_bytes_go_to_arrays_that_are_read_only(pair, tmp_path):
    frozen = np.zeros(8192, np.uint8)
    frozen.flags.writeable = False
    (tmp_path / "file").write_bytes(bytes(8192))
    mapped = np.memmap(tmp_path / "file", np.uint8, "r")
    theirs = pair.their_blocks[[0, 1]]
    arrays = {"bytes": np.frombuffer(bytes(8192), np.uint8), "frozen": frozen, "mapped": mapped, "dlpack": frozen}
    for name, memory in arrays.items():
        pages = memory.reshape(2, 4096)
        if name == "dlpack":
            pages = ByDlpack(pages)
        region = pair.near.register(pages, name=name, page_dim=0)
        for mine in (pair.near.block_list(pages), pair.near.block_list([pages]), region.view()):
            with pytest.raises(towline.PermissionDenied, match="read-only"):
                pair.near.copy(theirs, mine)
            with pytest.raises(towline.PermissionDenied, match="read-only"):
                pair.near.plan(pair.their_blocks, mine)
            pair.near.copy(mine, theirs).result(timeout=TIMEOUT)  # from there they may
        with pytest.raises(towline.PermissionDenied, match="read-only"):
            pair.near.transfer(theirs, pair.near.block_list(pages))
        assert not memory.any()


def test_arrays_of_python_objects_are_refused(make_agent):
    agent = make_agent()
    fields = np.zeros(4, [("Origin", np.int32), ("value", np.float64)])
    assert agent.register(fields).nbytes == fields.nbytes
    for array in (np.array([None, "text"]), np.zeros(4, [("number", np.int32), ("any", object)])):
        with pytest.raises(ValueError, match="Python objects"):
            agent.register(array)


def test_memory_with_holes_is_refused(make_agent):
    agent = make_agent()
    array = np.zeros((8, 8))
    with pytest.raises(ValueError, match="holes"):
        agent.register(array[:, :4], access="rw")
    assert agent.register(array.T, access="rw").nbytes == array.nbytes
    with pytest.raises(ValueError, match="contiguous"):
        agent.block_list(array[:, ::2])


def test_agent_ends_with_the_last_object_made_from_it():
    agent = towline.Agent("short", listen="none")
    alive = weakref.ref(agent)
    region = agent.register(bytearray(4096), access="rw")
    agent.region = region  # a cycle, which the collector sees
    blocks = agent.block_list((region.address, 8))
    move = agent.transfer(blocks, blocks)
    agent.kept = (region, blocks, move)
    del agent, region, blocks, move
    gc.collect()
    assert alive() is None


def test_metadata_of_chosen_regions(make_agent):
    owner, user = make_agent("owner"), make_agent("user")
    regions = [owner.register(bytearray(4096), access="rw") for _ in range(3)]
    peer = user.add_peer(owner.metadata([regions[1]]))
    assert [(info.key, info.address, info.nbytes) for info in peer.regions()] == [
        (regions[1].key, regions[1].address, 4096)
    ]
    assert peer.regions()[0].access == "all" and not peer.regions()[0].guarded
    user.add_peer(owner.metadata())
    assert sorted(info.key for info in peer.regions()) == sorted(region.key for region in regions)
    late = owner.register(bytearray(4096), access="rw")
    peer.refresh()
    assert late.key in [info.key for info in peer.regions()]


def test_pages_come_back_stamped(make_agent):
    pair = Pair(make_agent, pages=256, page_bytes=65536)
    pair.read().wait(TIMEOUT)
    assert np.array_equal(pair.mine, pair.theirs)


def test_a_region_is_its_agents_own_unless_it_says_what_peers_may_do(pair):
    private, open_to = np.zeros(8192, np.uint8), {"r": "read", "w": "write", "rw": "all", "read": "read"}
    own = pair.far.register(private)
    opened = [pair.far.register(np.zeros(64, np.uint8), access=given) for given in open_to]
    peer = pair.near.add_peer(pair.far.metadata())
    known = {region.key: region.access for region in peer.regions()}
    assert [known[region.key] for region in opened] == list(open_to.values())
    assert own.key not in known
    with pytest.raises(towline.OutOfRange, match="read or write access"):
        peer.block_list(towline.Blocks(own.address, 4096))
    with pytest.raises(towline.PermissionDenied, match="without access"):
        pair.far.metadata([own])
    mine = pair.far.block_list([private[:4096]])  # its own agent copies as it likes
    there = pair.far.block_list([private[4096:]])
    private[:4096] = 7
    assert pair.far.copy(mine, there).result(timeout=30).nbytes == 4096
    assert (private == 7).all()


class Watched(np.ndarray):
    """An array that can be referred to weakly."""


def test_what_was_registered_lives_until_peers_have_let_go(make_agent):
    owner = make_agent("owner", backends="shm")
    visitor = make_agent("visitor", backends="shm", progress="caller")  # lets go only when it is told to
    theirs = np.zeros(4096, np.uint8).view(Watched)
    alive = weakref.ref(theirs)
    region = owner.register(theirs, access="rw")
    mine = bytearray(4096)
    own = visitor.register(mine)
    blocks = towline.Blocks(region.address, 4096)
    there = visitor.add_peer(owner.metadata()).block_list(blocks)
    plan = visitor.plan(visitor.block_list([towline.Blocks(own.address, 4096)]), there)
    plan.post().result(timeout=30)
    del theirs, region  # nothing waits
    gc.collect()
    assert alive() is not None
    deadline = time.monotonic() + 60
    while alive() is not None and time.monotonic() < deadline:
        visitor.progress()
    assert alive() is None

"""pplx_garden.fabric_lib: its public names do what programs expect, in one process and in two."""

from __future__ import annotations

import ast
import ctypes
import mmap
import pathlib
import pickle
import queue
import subprocess
import sys
import threading

import pytest

from pplx_garden import fabric_lib
from pplx_garden.fabric_lib import DomainAddress, MemoryRegionDescriptor, PageIndices, TransferEngine
from pplx_garden.utils import logging_utils

ROOT = pathlib.Path(__file__).parent.parent
PAGE = 4096
LIMIT = 20


def fail(why: str) -> None:
    raise AssertionError(why)


class Side:
    def __init__(self, pages: int = 16) -> None:
        group = TransferEngine.detect_topology()[0]
        self.engine = TransferEngine.builder().add_gpu_domains(group.cuda_device, group.domains, group.cpus[0], group.cpus[1]).build()
        self.arena = mmap.mmap(-1, pages * PAGE)
        self.pointer = ctypes.addressof(ctypes.c_char.from_buffer(self.arena))
        self.handle, self.descriptor = self.engine.register_memory(self.pointer, pages * PAGE, "cpu")


@pytest.fixture
def sides():
    made = [Side(), Side()]
    yield made
    for side in made:
        side.engine.stop()


class Outcome:
    """on_done and on_error."""

    def __init__(self) -> None:
        self.told: queue.Queue = queue.Queue()

    @property
    def callbacks(self):
        return (lambda: self.told.put("done"), lambda why: self.told.put(why))

    def wait(self) -> str:
        return self.told.get(timeout=LIMIT)


def test_addresses_and_descriptors_are_values(sides):
    text = "fe800000000000000455eefffe35f1c500000000d85fb3680000000000000000"
    one, two = DomainAddress.from_str(text), DomainAddress.from_str(text)
    assert one == two and hash(one) == hash(two) and len({one, two}) == 1 and str(one) == text
    assert repr(one) == f"DomainAddress.from_str('{text}')"
    assert pickle.loads(pickle.dumps(one)) == DomainAddress.from_bytes(one.as_bytes()) == one
    with pytest.raises(ValueError, match="Invalid Address"):
        DomainAddress.from_str("xy")
    descriptor = sides[0].descriptor
    assert pickle.loads(pickle.dumps(descriptor)).as_bytes() == descriptor.as_bytes()
    assert f"{sides[0].pointer:012x}" in descriptor.debug_str() and f"{sides[0].pointer:012x}" in sides[0].handle.debug_str()
    for junk in (b"", b"x" * 100, descriptor.as_bytes()[:12]):
        with pytest.raises(ValueError, match="deserialize"):
            MemoryRegionDescriptor.from_bytes(junk)


def test_topology_and_engine_say_what_there_is(sides):
    groups = TransferEngine.detect_topology()
    assert groups and all(len(group.cpus) >= 2 and group.domains and group.numa == 0 for group in groups)
    assert groups[0].domains[0].name.startswith("ofi:") and groups[0].domains[0].link_speed == 0
    engine = sides[0].engine
    assert engine.num_domains == engine.nets_per_gpu == len(groups[0].domains)
    assert engine.aggregated_link_speed == 0 and isinstance(engine.fabric_engine, fabric_lib.FabricEngine)
    other = TransferEngine(1, [groups[0].cuda_device])
    assert other.main_address != engine.main_address
    other.stop()
    with pytest.raises(RuntimeError, match="Not all CUDA devices"):
        TransferEngine(1, [99])
    with pytest.raises(RuntimeError, match="Not enough NICs"):
        TransferEngine(50, [groups[0].cuda_device])
    with pytest.raises(RuntimeError):
        TransferEngine.builder().build()


def test_each_gpu_gets_the_nics_nearest_to_it(monkeypatch):
    def port(number: int, rate: str, chosen: bool = True) -> dict:
        return {"rail": f"verbs:mlx5_{number}/1", "rate": rate, "chosen": chosen}

    host = {
        "ports": [port(0, "400 Gb/sec (4X NDR)"), port(1, "400 Gb/sec (4X NDR)"), port(2, "", chosen=False)],
        "gpus": [{"near": ["verbs:mlx5_1/1"], "numa_node": 1}, {"near": ["verbs:mlx5_0/1"], "numa_node": 0}],
    }
    monkeypatch.delenv("PPLX_GARDEN_RAILS", raising=False)
    monkeypatch.setattr(fabric_lib.fabric, "topology", lambda: host)
    monkeypatch.setattr(fabric_lib, "_nvidia_gpus", lambda: 2)
    groups = TransferEngine.detect_topology()
    assert [(group.cuda_device, group.numa, [nic.name for nic in group.domains]) for group in groups] == [(0, 1, ["verbs:mlx5_1/1"]), (1, 0, ["verbs:mlx5_0/1"])]
    assert groups[0].domains[0].link_speed == 400_000_000_000
    monkeypatch.setenv("PPLX_GARDEN_RAILS", "ofi:a,ofi:b")
    assert [nic.name for group in TransferEngine.detect_topology() for nic in group.domains] == ["ofi:a", "ofi:b"]
    monkeypatch.delenv("PPLX_GARDEN_RAILS")
    host["ports"] = [port(2, "", chosen=False)]
    assert TransferEngine.detect_topology()[0].domains[0].name.startswith("ofi:tcp")


def test_writes_and_pages_arrive_with_their_immediates(sides):
    one, two = sides
    one.arena[:] = bytes(range(256)) * (len(one.arena) // 256)
    imms: queue.Queue = queue.Queue()
    reached = threading.Event()
    two.engine.set_imm_callback(imms.put)
    outcome = Outcome()
    one.engine.submit_write(one.handle, 5, 1000, 555, two.descriptor, 9, *outcome.callbacks)
    assert outcome.wait() == "done" and imms.get(timeout=LIMIT) == 555
    assert two.arena[9:1009] == one.arena[5:1005] and two.arena[1009] == 0
    # Counted up to what is expected; what comes beyond that goes to the callback.
    assert two.engine.set_imm_count_expected(3, 5, reached.set) is None
    assert two.engine.set_imm_count_expected(3, 5, reached.set) == (0, 5)
    pages = PageIndices([1, 3, 2, 9, 8, 4, 5])
    one.engine.submit_paged_writes(100, one.handle, pages, PAGE, 17, two.descriptor, pages, PAGE, 33, 3, *outcome.callbacks)
    assert outcome.wait() == "done" and reached.wait(LIMIT)
    assert [imms.get(timeout=LIMIT) for _ in range(2)] == [3, 3]
    for page in (1, 3, 2, 9, 8, 4, 5):
        assert two.arena[page * PAGE + 33 : page * PAGE + 133] == one.arena[page * PAGE + 17 : page * PAGE + 117]
    # Pages without bytes only count.
    assert two.engine.set_imm_count_expected(4, 8, reached.set) is None
    one.engine.submit_paged_writes(0, one.handle, pages, 0, 0, two.descriptor, pages, 0, 0, 4, *outcome.callbacks)
    one.engine.submit_imm(4000, two.descriptor, *outcome.callbacks)
    assert outcome.wait() == outcome.wait() == "done"
    assert imms.get(timeout=LIMIT) == 4000
    assert two.engine.remove_imm_count(4) == (7, 8) and two.engine.remove_imm_count(4) is None


def test_sends_of_any_size_fill_bouncing_receives(sides):
    one, two = sides
    got: queue.Queue = queue.Queue()
    two.engine.submit_bouncing_recvs(2, 1 << 20, got.put, fail)
    outcome = Outcome()
    for size in (0, 1, 600, 70_000, 1 << 20, 3):
        one.engine.submit_send(two.engine.main_address, bytes([size % 251]) * size, *outcome.callbacks)
        assert outcome.wait() == "done"
        assert got.get(timeout=LIMIT) == bytes([size % 251]) * size
    one.engine.submit_send(two.engine.main_address, bytes((1 << 20) + 1), *outcome.callbacks)
    assert outcome.wait().startswith("OUT_OF_RANGE")


def test_an_engine_writes_to_its_own_memory(sides):
    one = sides[0]
    imms: queue.Queue = queue.Queue()
    one.engine.set_imm_callback(imms.put)
    one.arena[:5] = b"hello"
    outcome = Outcome()
    one.engine.submit_write(one.handle, 0, 5, 1, one.descriptor, PAGE, *outcome.callbacks)
    assert outcome.wait() == "done" and one.arena[PAGE : PAGE + 5] == b"hello" and imms.get_nowait() == 1
    with pytest.raises(RuntimeError, match="out of range"):
        one.engine.submit_write(one.handle, 0, 5, 1, one.descriptor, len(one.arena), *outcome.callbacks)


def test_words_are_watched(sides):
    seen: queue.Queue = queue.Queue()
    watcher = sides[0].engine.alloc_scalar_watcher(lambda old, new: seen.put((old, new)) or True)
    ctypes.c_uint64.from_address(watcher.ptr).value = 1
    assert seen.get(timeout=LIMIT) == (0, 1)
    ctypes.c_uint64.from_address(watcher.ptr).value = 3
    assert seen.get(timeout=LIMIT) == (1, 3)


def test_what_is_wrong_is_refused_or_told(sides):
    one, two = sides
    outcome = Outcome()
    with pytest.raises(ValueError, match="page-aligned"):
        one.engine.register_memory(one.pointer, 100, "cpu")
    with pytest.raises(RuntimeError, match="Failed to register memory: .*(cuda|GPU|dma-buf)"):
        one.engine.register_memory(one.pointer, PAGE, "cuda:0")
    with pytest.raises(RuntimeError, match="memory of xpu:0 can't be registered"):
        one.engine.register_memory(one.pointer, PAGE, "xpu:0")
    with pytest.raises(RuntimeError, match="Failed to submit write"):
        one.engine.submit_write(one.handle, 0, 10, None, two.descriptor, len(two.arena), *outcome.callbacks)
    with pytest.raises(ValueError, match="num_shards"):
        one.engine.submit_write(one.handle, 0, 10, None, two.descriptor, 0, *outcome.callbacks, num_shards=99)
    with pytest.raises(ValueError, match="zero"):
        one.engine.set_imm_count_expected(1, 0, lambda: None)
    with pytest.raises(RuntimeError, match="Failed to submit SEND"):
        one.engine.submit_send(DomainAddress.from_str("00ff"), b"x", *outcome.callbacks)
    one.engine.submit_imm(1, two.descriptor, *outcome.callbacks)
    assert outcome.wait() == "done"
    one.engine.unregister_memory(one.pointer)
    with pytest.raises(RuntimeError, match="unregister"):
        one.engine.unregister_memory(one.pointer)
    two.engine.stop()
    # libfabric's tcp has sent a message when the kernel has it: what is on its way as the peer goes may look done.
    for _ in range(1000):
        one.engine.submit_imm(1, two.descriptor, *outcome.callbacks)
        told = outcome.wait()
        if told != "done":
            break
    assert told.startswith("PEER_LOST")


def test_tensors_are_registered():
    torch = pytest.importorskip("torch")
    side = Side()
    handle, descriptor = side.engine.register_tensor(torch.zeros(PAGE, dtype=torch.uint8))
    assert handle.capsule() is not None and descriptor.as_bytes()
    with pytest.raises(ValueError, match="page-aligned"):
        side.engine.register_tensor(torch.zeros(10))
    with pytest.raises(ValueError, match="contiguous"):
        side.engine.register_tensor(torch.zeros(64, 64, 4).transpose(0, 1))
    side.engine.stop()


def test_the_example_runs_in_two_processes():
    done = subprocess.run([sys.executable, str(ROOT / "examples" / "two_processes.py")], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "64 pages of 3000 bytes" in done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "pplx_garden").rglob("*.py")), ids=lambda path: path.name)
def test_is_understood_by_the_oldest_python(path):
    assert ast.get_docstring(ast.parse(path.read_text(), feature_version=(3, 10)))


def test_loggers_are_made_by_name():
    assert logging_utils.get_logger("a.b").name == "a.b"

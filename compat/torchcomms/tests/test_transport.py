"""RdmaTransport between pairs, over libfabric's sockets: in one process and in two."""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/torch-cpu makes an environment with it")
pytest.importorskip("torchcomms", reason="compat/torchcomms is not installed")

from torchcomms import _transport  # noqa: E402
from torchcomms._transport import RdmaMemory, RdmaRemoteBuffer, RdmaTransport  # noqa: E402

RAILS = "ofi:tcp;ofi_rxm@127.0.0.1"


@pytest.fixture(scope="module", autouse=True)
def over_sockets():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHCOMMS_RDMA_RAILS", RAILS)
        patch.setenv("TORCHCOMMS_RDMA_LISTEN", "127.0.0.1:0")
        patch.setattr(_transport, "_opened", None)
        yield
        for engine in (_transport._engines().reached, _transport._engines().reaching):
            engine.close()
        patch.setattr(_transport, "_opened", None)


@pytest.fixture
def ends():
    assert RdmaTransport.supported()
    one, two = RdmaTransport(torch.device("cuda:0")), RdmaTransport(torch.device("cpu"))
    assert not one.connected()
    assert one.connect(two.bind()) == 0 and two.connect(one.bind()) == 0
    assert one.connected() and two.connected()
    return one, two


def bytes_of(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64).to(torch.uint8)


def test_writes_and_reads(ends):
    one, two = ends
    source, target, back = bytes_of(1 << 20), torch.zeros(1 << 20, dtype=torch.uint8), torch.zeros(1 << 20, dtype=torch.uint8)
    mine, theirs, read = RdmaMemory(source), RdmaMemory(target, cache_reg=True), RdmaMemory(back)
    assert one.write(mine.to_view(), theirs.to_remote_buffer()) == 0
    assert torch.equal(source, target)
    assert two.read(read.to_mutable_view(), mine.to_remote_buffer()) == 0
    assert torch.equal(back, source)


def test_views_move_their_part(ends):
    one, two = ends
    source, target = bytes_of(1024), torch.zeros(1024, dtype=torch.uint8)
    mine, theirs = RdmaMemory(source), RdmaMemory(target)
    assert [mine.to_view(offset=256).size(), mine.to_mutable_view(length=512).size()] == [768, 512]
    assert one.write(mine.to_view(offset=256, length=512), theirs.to_remote_buffer()) == 0
    assert torch.equal(target[:512], source[256:768]) and not target[512:].any()
    target.zero_()
    assert two.read(theirs.to_mutable_view(256, 512), mine.to_remote_buffer()) == 0
    assert torch.equal(target[256:768], source[:512]) and not target[:256].any() and not target[768:].any()
    # Memory that begins anywhere, and a buffer within another one.
    target.zero_()
    piece = RdmaMemory(target[17:])
    whole = piece.to_remote_buffer()
    assert one.write(mine.to_view(length=100), RdmaRemoteBuffer(whole.ptr + 83, 100, whole.access_key)) == 0
    assert torch.equal(target[100:200], source[:100]) and not target[:100].any() and not target[200:].any()


@pytest.mark.parametrize("protocol", [0, 1, pickle.HIGHEST_PROTOCOL])
def test_remote_buffers_travel(ends, protocol):
    source, target = bytes_of(4096), torch.zeros(4096, dtype=torch.uint8)
    theirs = RdmaMemory(target)
    told = pickle.loads(pickle.dumps(theirs.to_remote_buffer(), protocol=protocol))
    assert ends[0].write(RdmaMemory(source).to_view(), told) == 0
    assert torch.equal(source, target)
    del theirs


def test_what_is_wrong_has_a_number(ends, caplog):
    one, _ = ends
    source, target = RdmaMemory(bytes_of(4096)), RdmaMemory(torch.zeros(2048, dtype=torch.uint8))
    far = target.to_remote_buffer()
    assert one.write(source.to_view(), far) == 4 and "2048" in caplog.text
    assert one.write(source.to_view(), RdmaRemoteBuffer(far.ptr, 1 << 30, far.access_key)) == 4
    assert one.write(source.to_view(length=8), RdmaRemoteBuffer(far.ptr - 8, 8, far.access_key)) == 4
    assert one.write(source.to_view(length=8), RdmaRemoteBuffer(far.ptr, 8, "not a key")) == 4
    assert one.connect(one.bind()) == 5
    alone = RdmaTransport(torch.device("cpu"))
    assert alone.write(source.to_view(length=8), far) == 5
    assert alone.connect(b"nonsense") not in (0, 5) and not alone.connected()
    with pytest.raises(RuntimeError, match="does not lie within"):
        source.to_view(offset=4000, length=100)
    with pytest.raises(RuntimeError, match="contiguous"):
        RdmaMemory(torch.zeros(8, 8)[:, 1])
    with pytest.raises(TypeError):
        one.read(source.to_view(), far)


def test_memory_that_is_gone_ends_a_transfer(ends, monkeypatch):
    monkeypatch.setattr(_transport, "_MOVE_SECONDS", 1.0)
    target = torch.zeros(4096, dtype=torch.uint8)
    gone = RdmaMemory(target).to_remote_buffer()
    assert ends[0].write(RdmaMemory(bytes_of(4096)).to_view(), gone) in (3, 6) and not target.any()


class OnGpu:
    """A tensor of a GPU as far as it is asked. Its address is nowhere: only the descriptor leads to its bytes, `seen`."""

    device = torch.device("cuda", 3)

    def __init__(self, count: int) -> None:
        self.file = os.memfd_create("gpu")
        os.ftruncate(self.file, count)
        self.seen = torch.frombuffer(mmap.mmap(self.file, count), dtype=torch.uint8)

    def data_ptr(self) -> int:
        return 0x700000000000 + (self.file << 32)

    def numel(self) -> int:
        return self.seen.numel()

    def element_size(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return True

    def __del__(self) -> None:
        os.close(self.file)


class Exporting:
    """An engine's native part on a host whose GPU's driver exports what `tensors` are."""

    def __init__(self, native: object, tensors: list[OnGpu]) -> None:
        self._native, self._tensors = native, tensors

    def __getattr__(self, name: str) -> object:
        return getattr(self._native, name)

    def register_gpu(self, address: int, nbytes: int, access: int, gpu: int) -> object:
        of = next(tensor for tensor in self._tensors if tensor.data_ptr() == address and tensor.device.index == gpu)
        return self._native.register_dma_buf(address, nbytes, access, of.file, 0)


def on_gpus(monkeypatch, rails: str, tensors: list[OnGpu]) -> tuple[RdmaTransport, _transport._Engines]:
    monkeypatch.setenv("TORCHCOMMS_RDMA_RAILS", rails)
    monkeypatch.setattr(_transport, "_opened", None)
    engines = _transport._engines()
    for engine in (engines.reached, engines.reaching):
        monkeypatch.setattr(engine, "_native", Exporting(engine._native, tensors))
    transport = RdmaTransport(torch.device("cuda:3"))
    assert transport.connect(transport.bind()) == 0
    return transport, engines


def test_tensors_of_gpus_go_by_their_dma_bufs(monkeypatch):
    source, target = OnGpu(1 << 20), OnGpu(1 << 20)
    transport, engines = on_gpus(monkeypatch, "loopback:torchcomms-gpus", [source, target])
    source.seen.copy_(bytes_of(1 << 20))
    mine, theirs, host = RdmaMemory(source), RdmaMemory(target), torch.zeros(1 << 20, dtype=torch.uint8)
    assert transport.write(mine.to_view(offset=4096), theirs.to_remote_buffer()) == 0
    assert torch.equal(target.seen[:-4096], source.seen[4096:]) and not target.seen[-4096:].any()
    assert transport.read(RdmaMemory(host).to_mutable_view(), mine.to_remote_buffer()) == 0
    assert torch.equal(host, source.seen)
    assert not mine.reused_registration()
    engines.reaching.close()
    engines.reached.close()


def test_what_takes_no_memory_of_gpus_is_named(monkeypatch, caplog):
    tensor = OnGpu(4096)
    transport, engines = on_gpus(monkeypatch, "loopback:torchcomms-host?host_only", [tensor])
    memory = RdmaMemory(tensor)
    with pytest.raises(RuntimeError, match="dma-buf"):
        memory.to_remote_buffer()
    host = RdmaMemory(torch.zeros(4096, dtype=torch.uint8))
    assert transport.write(memory.to_view(), host.to_remote_buffer()) != 0 and "dma-buf" in caplog.text
    with pytest.raises(RuntimeError, match="meta"):
        RdmaMemory(torch.empty(8, device="meta"))
    with pytest.raises(RuntimeError, match="by itself"):
        _transport.attach_rdma_memory_hook(None, None)
    engines.reaching.close()
    engines.reached.close()


PEER = textwrap.dedent(
    """
    import pickle, sys, torch
    from torchcomms._transport import RdmaMemory, RdmaTransport

    transport = RdmaTransport(torch.device("cpu"))
    target = torch.zeros(1 << 16, dtype=torch.uint8)
    memory = RdmaMemory(target)
    print(pickle.dumps((transport.bind(), memory.to_remote_buffer())).hex(), flush=True)
    url = bytes.fromhex(sys.stdin.readline())
    assert transport.connect(url) == 0
    print(transport.connected(), flush=True)
    sys.stdin.readline()
    print(int(target.sum()), flush=True)
    sys.stdin.readline()
    """
)


def test_two_processes():
    peer = subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        url, buffer = pickle.loads(bytes.fromhex(peer.stdout.readline()))
        transport = RdmaTransport(torch.device("cpu"))
        assert transport.connect(url) == 0
        peer.stdin.write(transport.bind().hex() + "\n")
        peer.stdin.flush()
        assert peer.stdout.readline() == "True\n"
        source = bytes_of(1 << 16)
        assert transport.write(RdmaMemory(source).to_view(), buffer) == 0
        peer.stdin.write("\n")
        peer.stdin.flush()
        assert int(peer.stdout.readline()) == int(source.sum())
        back = torch.zeros(1 << 16, dtype=torch.uint8)
        assert transport.read(RdmaMemory(back).to_mutable_view(), buffer) == 0
        assert torch.equal(back, source)
    finally:
        peer.stdin.close()
        peer.wait(timeout=60)
    assert peer.returncode == 0
    # It is gone, and said so in time.
    assert transport.write(RdmaMemory(source).to_view(), buffer) != 0

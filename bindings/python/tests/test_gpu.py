"""Tensors in GPU memory: torch's and CuPy's, their streams, and graphs. Needs a GPU and torch built for it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import towline

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

LAST = torch.cuda.device_count() - 1
PAGES, TOKENS, HEADS, DIM = 64, 16, 8, 128


@pytest.fixture
def pair(make_agent):
    """Two agents of this process."""
    return tuple(make_agent(name, listen="none") for name in ("near", "far"))


def blocks_of(tensor, length: int, *dims: tuple[int, int], offset: int = 0) -> towline.Blocks:
    return towline.Blocks(
        tensor.data_ptr() + offset, length, *dims, kind="vram", device=tensor.device.index
    )


def cache(device: int, seed: int, *shape: int):
    generator = torch.Generator(device=f"cuda:{device}").manual_seed(seed)
    return torch.randint(-30000, 30000, shape, dtype=torch.int16, device=f"cuda:{device}", generator=generator)


def pages_of(near, far, mine, theirs, regions):
    regions += [near.register(mine, access="rw"), far.register(theirs, access="rw")]
    peer = near.add_peer(far.metadata())
    page = mine[0].numel() * mine.element_size()
    return near.block_list(mine), peer.block_list(blocks_of(theirs, page, (len(theirs), page)))


def test_torch_pages_move_in_the_order_of_torchs_stream(pair) -> None:
    near, far = pair
    mine, theirs = cache(0, 1, 512, 16384), cache(LAST, 2, 512, 16384)
    regions: list = []
    here, there = pages_of(near, far, mine, theirs, regions)
    assert regions[0].kind == "vram"
    picks = torch.randperm(512)
    write = near.transfer(here, there[picks])
    assert write.route()["backend"] == "cuda"
    for stream in (torch.cuda.Stream(0), torch.cuda.current_stream(0)):
        with torch.cuda.stream(stream):
            for _ in range(50):
                mine.add_(1)
            expected = mine.clone()
            assert write.post_on(stream) == towline.Status.IN_PROGRESS
            mine.zero_()  # comes after it
        write.wait(timeout=60)
        assert torch.equal(theirs[picks].to("cuda:0"), expected)
        mine.copy_(expected)
    torch.cuda.synchronize(0)
    mine.zero_()
    torch.cuda.synchronize(0)
    read = near.transfer(there[picks], here)
    stream = torch.cuda.Stream(0)
    read.post()
    read.wait_on(stream)
    with torch.cuda.stream(stream):
        seen = mine.clone()
    stream.synchronize()
    read.wait(timeout=60)
    assert torch.equal(seen, expected)


def test_a_graph_of_torch_moves_each_time(pair) -> None:
    near, far = pair
    mine, theirs = cache(0, 3, 256, 8192), cache(LAST, 4, 256, 8192)
    regions: list = []
    move = near.transfer(*pages_of(near, far, mine, theirs, regions))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mine.add_(1)
        assert move.post_on(torch.cuda.current_stream()) == towline.Status.OK
        mine.add_(1)
    for _ in range(5):
        before = mine.clone()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(theirs.to("cuda:0"), before + 1)
    assert (move.replays.ended, move.replays.refused) == (5, 0)
    regions.pop().deregister()
    after = theirs.clone()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(theirs, after)
    assert (move.replays.ended, move.replays.refused) == (6, 1)
    assert move.replays.status == towline.Status.STALE


def test_heads_are_recut_for_another_layout_and_tensor_parallel_degree(pair) -> None:
    """NHD [page, token, head, dim] of all heads there; HND [page, head, token, dim] of half of them here."""
    near, far = pair
    theirs = cache(LAST, 5, PAGES, TOKENS, HEADS, DIM)
    half = HEADS // 2
    head = DIM * 2
    for rank in range(2):
        mine = cache(0, 6, PAGES, half, TOKENS, DIM)
        regions = [near.register(mine, access="rw"), far.register(theirs, access="rw")]
        peer = near.add_peer(far.metadata())
        here = near.block_list(
            blocks_of(mine, head, (PAGES, half * TOKENS * head), (half, TOKENS * head), (TOKENS, head))
        )
        there = peer.block_list(
            blocks_of(
                theirs, head, (PAGES, TOKENS * HEADS * head), (half, head), (TOKENS, HEADS * head),
                offset=rank * half * head,
            )
        )
        mine_rank = theirs[:, :, rank * half : (rank + 1) * half].transpose(1, 2).to("cuda:0")
        near.transfer(there, here).wait(timeout=60)
        assert torch.equal(mine, mine_rank)
        mine.add_(1)
        torch.cuda.synchronize(0)
        near.transfer(here, there).wait(timeout=60)
        assert torch.equal(theirs[:, :, rank * half : (rank + 1) * half].transpose(1, 2).to("cuda:0"), mine)
        for region in regions:
            region.deregister()


def test_cupy_and_array_interfaces(pair) -> None:
    cupy = pytest.importorskip("cupy")
    near, far = pair
    with cupy.cuda.Device(0):
        mine = cupy.arange(1 << 20, dtype=cupy.int32)
    theirs = torch.zeros(1 << 20, dtype=torch.int32, device=f"cuda:{LAST}")

    class Interface:
        __cuda_array_interface__ = mine.__cuda_array_interface__

    for array in (mine, Interface()):
        theirs.zero_()
        torch.cuda.synchronize(LAST)
        with cupy.cuda.Device(0):
            cupy.cuda.Stream.null.synchronize()
            stream = cupy.cuda.Stream(non_blocking=True)
        regions = [near.register(array, access="rw"), far.register(theirs, access="rw")]
        assert (regions[0].kind, regions[0].device, regions[0].nbytes) == ("vram", 0, 4 << 20)
        peer = near.add_peer(far.metadata())
        move = near.transfer(near.block_list(regions[0].blocks(0, 4096, (1024, 4096))), peer.block_list(blocks_of(theirs, 4096, (1024, 4096))))
        assert move.post_on(stream) == towline.Status.IN_PROGRESS
        move.wait(timeout=60)
        assert np.array_equal(theirs.cpu().numpy(), np.arange(1 << 20, dtype=np.int32))
        for region in regions:
            region.deregister()


def test_a_tensor_goes_to_a_file_and_comes_back(make_agent, tmp_path) -> None:
    agent = make_agent("owner", listen="none")
    mine = cache(0, 9, 512, 16384)
    region = agent.register(mine, access="rw")
    file = agent.register_storage(tmp_path / "pages", create=True, nbytes=region.nbytes)
    page = region.nbytes // 512
    ours = agent.block_list(mine)
    stored = agent.block_list(file.blocks(0, page, (512, page)))
    picks = np.random.default_rng(1).permutation(512).astype(np.uint32)
    torch.cuda.synchronize(0)
    save = agent.transfer(ours[picks], stored)
    assert "cuda then posix" in save.route()["why"]
    save.wait(timeout=60)
    saved = np.fromfile(tmp_path / "pages", dtype=np.int16).reshape(512, -1)
    assert np.array_equal(saved, mine.cpu().numpy()[picks])
    expected = mine.clone()
    mine.zero_()
    torch.cuda.synchronize(0)
    agent.transfer(stored, ours[picks]).wait(timeout=60)
    assert torch.equal(mine, expected)


def test_a_stream_of_another_gpu_and_what_is_no_stream_are_refused(pair) -> None:
    near, far = pair
    mine, theirs = cache(0, 7, 16, 4096), cache(LAST, 8, 16, 4096)
    regions: list = []
    move = near.transfer(*pages_of(near, far, mine, theirs, regions))
    with pytest.raises(towline.InvalidArgument, match="stream"):
        move.post_on("stream")
    if LAST != 0:
        with pytest.raises(towline.InvalidArgument, match="not of GPU 0"):
            move.post_on(torch.cuda.Stream(LAST))


@pytest.mark.parametrize(
    "environment",
    [
        # GPUs are hidden from it: its ordinal 0 is our last GPU.
        pytest.param({"CUDA_VISIBLE_DEVICES": str(LAST)}, id="sees_another_gpu_as_its_first"),
        # Many allocations side by side in a range of addresses that is far longer.
        pytest.param({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, id="has_expandable_segments"),
    ],
)
def test_a_tensor_of_another_process_is_written(make_agent, environment) -> None:
    theirs = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OTHER)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    try:
        address, pointer = theirs.stdout.readline().split()
        near = make_agent("near")
        mine = cache(0, 9, 64, 524288)
        region = near.register(mine, access="rw")
        peer = near.connect(address)
        there = peer.block_list(towline.Blocks(int(pointer), 1 << 20, (64, 1 << 20), kind="vram"))
        move = near.transfer(near.block_list(mine), there)
        assert move.route()["backend"] == "cuda"
        move.wait(timeout=60)
        print("sum", file=theirs.stdin, flush=True)
        assert int(theirs.stdout.readline()) == int(mine.long().sum())
        region.deregister()
    finally:
        theirs.stdin.close()
        theirs.wait(timeout=60)


OTHER = """
    import sys, torch, towline
    agent = towline.Agent("other", listen="127.0.0.1:0")
    tensor = torch.zeros(64, 524288, dtype=torch.int16, device="cuda:0")
    torch.cuda.synchronize()
    region = agent.register(tensor, access="rw")
    print(agent.address, tensor.data_ptr(), flush=True)
    for line in sys.stdin:
        print(int(tensor.long().sum()), flush=True)
    region.deregister()
    agent.close()
"""

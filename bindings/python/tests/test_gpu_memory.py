"""Memory of a GPU that two processes share, allocated through torch and CuPy. Needs a GPU, and a torch that sees it.

Kernels of several processes take turns on a GPU, at some milliseconds an exchange.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

from collective_ranks import Ranks, obey, open_communicator  # noqa: E402
from towline import gpu_memory  # noqa: E402

SIZE = 2


def serve(pipe, rank: int, size: int, folder: str) -> None:
    torch.cuda.set_device(0)
    with open_communicator(rank, size, folder, backend="gpu") as world:
        obey(pipe, world)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(SIZE, str(tmp_path_factory.mktemp("memory")), serve)
    yield ranks
    assert ranks.stop() == [0] * SIZE


def exchange(world, window, mine, source) -> None:
    """Everyone writes into the next rank's memory, and reads it back from there."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    window.put(after, 400, source, stream=stream)
    window.signal(after, stream=stream)
    window.wait_signal(before, stream=stream)
    back = torch.zeros_like(source)
    window.get(after, 400, back, stream=stream)
    stream.synchronize()
    assert torch.equal(back, source)
    assert (mine[100:1100] == before + 1).all(), mine[90:110]
    assert (mine[:100] == 0).all() and (mine[1100:] == 0).all()
    window.close()


def in_torchs_pool(world) -> None:
    pool = gpu_memory.torch_pool()
    with torch.cuda.use_mem_pool(pool):
        mine = torch.zeros(1 << 16, device="cuda")
        beside = torch.zeros(1 << 16, device="cuda")  # a second tensor in one page of the pool
    source = torch.full((1000,), world.rank + 1.0, device="cuda")
    torch.cuda.synchronize()
    window = world.window(mine)
    assert window.on_gpu and window.bytes(1 - world.rank) == mine.numel() * 4
    exchange(world, window, mine, source)
    assert (beside == 0).all()


def in_cupys_memory(world) -> None:
    import cupy

    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(gpu_memory.cupy_allocator().malloc)
    try:
        array = cupy.zeros(1 << 16, dtype=cupy.float32)
    finally:
        cupy.cuda.set_allocator(before)
    source = torch.full((1000,), world.rank + 1.0, device="cuda")
    torch.cuda.synchronize()
    exchange(world, world.window(array), torch.as_tensor(array, device="cuda"), source)


def copied(world) -> None:
    """Memory of torch's own allocator can't be shared among processes."""
    tensor = torch.zeros(1 << 16, device="cuda")
    window, mine = gpu_memory.window_of(world, tensor)
    assert mine.data_ptr() != tensor.data_ptr()
    source = torch.full((1000,), world.rank + 1.0, device="cuda")
    torch.cuda.synchronize()
    exchange(world, window, mine, source)


def test_processes_share_memory_of_torchs_pool(ranks):
    for _ in range(2):
        ranks.run(in_torchs_pool)


def test_processes_share_memory_of_cupy(ranks):
    pytest.importorskip("cupy")
    ranks.run(in_cupys_memory)


def test_memory_from_elsewhere_is_copied_into_a_window(ranks):
    ranks.run(copied)

"""What ranks of torch.distributed jobs do with torch's symmetric memory, in tests."""

from __future__ import annotations

import torch

import torch_ranks as ranks


def _symmetric(world):
    """torch's symmetric memory, of the backend TOWLINE from now on, where the tests' tensors are."""
    import torch.distributed._symmetric_memory as symm_mem

    from towline import _torch_gpu, torch_symmetric

    if ranks.device == "cpu":
        torch_symmetric._register(torch_symmetric.NAME, "cpu", *_torch_gpu.gpu.model.pool())
    else:
        torch_symmetric.register()
    symm_mem.set_backend("TOWLINE")
    symm_mem.enable_symm_mem_for_group(world.group_name)
    return symm_mem


def symmetric(world) -> None:
    """Others' memory, barriers and signals through torch.distributed._symmetric_memory."""
    symm_mem = _symmetric(world)
    rank, size = world.rank(), world.size()
    after, before = (rank + 1) % size, (rank - 1) % size
    assert symm_mem.get_backend(torch.device(ranks.device)) == "TOWLINE"
    tensor = symm_mem.empty(1000, dtype=torch.float32, device=ranks.device)
    if hasattr(symm_mem, "is_symm_mem_tensor"):  # torch 2.12
        assert symm_mem.is_symm_mem_tensor(tensor) and not symm_mem.is_symm_mem_tensor(torch.ones(3))
    tensor.fill_(rank)
    handle = symm_mem.rendezvous(tensor, world)
    assert (handle.rank, handle.world_size, handle.buffer_size) == (rank, size, 4000)
    assert handle.buffer_ptrs[rank] == tensor.data_ptr() and len(set(handle.buffer_ptrs)) == size
    assert symm_mem.rendezvous(tensor, world).buffer_ptrs == handle.buffer_ptrs
    assert not handle.get_signal_pad(after).view(torch.int32).any()  # no any() of uint32 on GPUs
    handle.barrier()
    theirs = handle.get_buffer(after, (1000,), torch.float32)
    assert (theirs == after).all()
    handle.barrier(channel=1)
    theirs.fill_(100 + rank)
    handle.put_signal(after, channel=5)
    handle.put_signal(after, channel=2)
    handle.wait_signal(before, channel=2)
    handle.wait_signal(before, channel=5)
    assert (tensor == 100 + before).all()
    handle.barrier()


def symmetric_comes_and_goes(world) -> int:
    """Memory that every rank has freed is given back. How many windows are left."""
    symm_mem = _symmetric(world)
    for round in range(5):
        tensor = symm_mem.empty(100 + round, dtype=torch.uint8, device=ranks.device)
        handle = symm_mem.rendezvous(tensor, world)
        handle.get_buffer((world.rank() + 1) % world.size(), (3,), torch.uint8, 4).fill_(round)
        handle.barrier()
        assert (tensor[4:7] == round).all()
        handle.barrier()
        del handle, tensor
    from towline import torch_symmetric

    meetings = torch_symmetric._meetings[torch_symmetric.NAME]
    return sum(len(group._windows) for group in meetings._groups.values())


def symmetric_errors(world) -> list:
    symm_mem = _symmetric(world)
    told = []
    tensor = symm_mem.empty(10, dtype=torch.uint8, device=ranks.device)
    handle = symm_mem.rendezvous(tensor, world)
    uneven = symm_mem.empty(10 + world.rank(), dtype=torch.uint8, device=ranks.device)
    for call in (
        lambda: symm_mem.rendezvous(torch.ones(3), world),
        lambda: symm_mem.rendezvous(uneven, world),  # a later one still finds its own
        lambda: handle.put_signal(0, channel=64),
        lambda: handle.put_signal(world.size()),
    ):
        try:
            call()
        except RuntimeError as error:
            told.append(str(error))
    even = symm_mem.empty(20, dtype=torch.uint8, device=ranks.device)
    symm_mem.rendezvous(even, world).barrier()
    handle.barrier()
    return told


def symmetric_late(world) -> str:
    """Rank 0 does not come to a barrier; its error is another's as well."""
    symm_mem = _symmetric(world)
    tensor = symm_mem.empty(10, dtype=torch.uint8, device=ranks.device)
    handle = symm_mem.rendezvous(tensor, world)
    if world.rank() == 0:
        return ""
    try:
        for _ in range(1000):
            handle.barrier(timeout_ms=300)
            if ranks.device != "cpu":
                torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error)
    return "no error"


def symmetric_operations(world) -> None:
    """torch's own kernels over this memory."""
    symm_mem = _symmetric(world)
    rank, size = world.rank(), world.size()
    tensor = symm_mem.empty(4096, dtype=torch.float32, device=ranks.device)
    tensor.fill_(rank + 1)
    symm_mem.rendezvous(tensor, world)
    expected = size * (size + 1) / 2
    assert (torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", world.group_name) == expected).all()
    torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", world.group_name)
    assert (tensor == expected).all()

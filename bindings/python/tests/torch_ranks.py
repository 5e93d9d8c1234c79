"""The ranks of torch.distributed jobs in tests. Beside our group each has one of gloo, to compare with."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import towline
from collective_ranks import TIMEOUT, obey
from towline import _torch_group, torch_distributed


def serve(pipe, rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch_distributed.register()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if os.environ.get("TOWLINE_TEST_PROCESS_GROUP") == "1":  # as torch before 2.14 takes it
        _torch_group.TAKES_BACKENDS = False
    start(rank, size, f"{folder}/first")
    obey(pipe, dist.group.WORLD)
    dist.destroy_process_group()


def serve_on_model(pipe, rank: int, size: int, folder: str) -> None:
    """The same with every tensor on a GPU, which is made of host memory."""
    import torch_gpu_model

    torch_gpu_model.install()
    serve(pipe, rank, size, folder)


def serve_on_gpu(pipe, rank: int, size: int, folder: str) -> None:
    """The same with every tensor on the first GPU, or with GPU_TESTS_ON=all on one of the rank's own."""
    torch.cuda.set_device(rank % torch.cuda.device_count() if os.environ.get("GPU_TESTS_ON") == "all" else 0)
    use("cuda")
    serve(pipe, rank, size, folder)


device = "cpu"  # of tensors


def use(where: str) -> None:
    global device
    device = where
    torch.set_default_device(where)


def start(rank: int, size: int, file: str, backend: str = "towline", **more) -> None:
    dist.init_process_group(
        backend, init_method=f"file://{file}", rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT), **more
    )


_gloo = None


def gloo():
    global _gloo
    if _gloo is None:
        _gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=TIMEOUT))
    return _gloo


def some(rank: int, *shape: int, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(rank)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(device, dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 50, shape, generator=generator, device="cpu").to(device, dtype)


def both(operation) -> None:
    """Runs operation(group) -> tensors on either group, and compares."""
    ours, mine = operation(dist.group.WORLD), device
    use("cpu")
    try:
        theirs = operation(gloo())
    finally:
        use(mine)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.cpu(), other)


def names(world) -> tuple:
    return dist.get_backend(), dist.get_rank(), dist.get_world_size(), dist.get_backend_config()


def timeouts(world) -> float:
    """torch reads a group's timeout at its backend, for groups of its own that it makes of it. Its monitored barrier takes the group."""
    group = dist.new_group(backend="towline", timeout=timedelta(seconds=50))
    if _torch_group.TAKES_BACKENDS:
        dist.monitored_barrier(group)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=40), group)
        backend = group._get_backend(torch.device("cpu"))
        options = backend.options
        backend._set_default_timeout(timedelta(seconds=30))  # what programs call that have a backend of gloo or NCCL
        assert (options.backend, backend.options._timeout.total_seconds()) == ("towline", 30)
        return options._timeout.total_seconds()
    return 40.0


def operations(world, dtype_name: str, count: int) -> None:
    dtype = getattr(torch, dtype_name)
    rank, size = world.rank(), world.size()

    def reduce_all(group):
        done = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            tensor = some(rank, count, dtype=dtype)
            assert dist.all_reduce(tensor, op, group=group) is None
            done.append(tensor)
        tensor = some(rank, count, dtype=dtype)
        dist.reduce(tensor, 1, group=group)
        return done + ([tensor] if rank == 1 else [])

    def move(group):
        broadcast = some(rank, count, dtype=dtype)
        dist.broadcast(broadcast, 1, group=group)
        listed = [torch.zeros(count, dtype=dtype) for _ in range(size)]
        dist.all_gather(listed, some(rank, count, dtype=dtype), group=group)
        whole = torch.zeros(size * count, dtype=dtype)
        dist.all_gather_into_tensor(whole, some(rank, count, dtype=dtype), group=group)
        gathered = [torch.zeros(count, dtype=dtype) for _ in range(size)] if rank == 0 else None
        dist.gather(some(rank, count, dtype=dtype), gathered, dst=0, group=group)
        scattered = torch.zeros(count, dtype=dtype)
        dist.scatter(scattered, [some(each, count, dtype=dtype) for each in range(size)] if rank == 1 else None, 1, group=group)
        swapped = torch.zeros(size * 2, dtype=dtype)
        dist.all_to_all_single(swapped, some(rank, size * 2, dtype=dtype), group=group)
        return [broadcast, *listed, whole, *(gathered or []), scattered, swapped]

    def reduce_parts(group):
        part = torch.zeros(count, dtype=dtype)
        dist.reduce_scatter_tensor(part, some(rank, size * count, dtype=dtype), group=group)
        listed = some(rank, size, count, dtype=dtype)
        if group is not dist.group.WORLD:  # gloo has no reduce_scatter of lists before torch 2.8
            dist.all_reduce(listed, group=group)
            return [part, listed[rank]]
        from_list = torch.zeros(count, dtype=dtype)
        dist.reduce_scatter(from_list, list(listed), group=group)
        return [part, from_list]

    both(reduce_all)
    both(move)
    both(reduce_parts)


def uneven(world) -> None:
    rank, size = world.rank(), world.size()
    splits = [each + 1 for each in range(size)]

    def exchange(group):
        received = torch.zeros(size * (rank + 1), 3)
        dist.all_to_all_single(received, some(rank, sum(splits), 3), [rank + 1] * size, splits, group=group)
        return [received]

    both(exchange)
    ours = [torch.zeros(rank + 1) for _ in range(size)]
    dist.all_to_all(ours, [torch.full((each + 1,), float(rank)) for each in range(size)])
    assert [one.tolist() for one in ours] == [[float(each)] * (rank + 1) for each in range(size)]


def unusual_tensors(world) -> None:
    """Holes, what inference mode made, complex numbers, scalars, nothing, the same one for every rank, averages and factors."""
    rank, size = world.rank(), world.size()
    wide = some(rank, 4, 6)
    rest = wide[:, 1::2].clone()
    column = wide[:, ::2]
    dist.all_reduce(column)
    torch.testing.assert_close(wide[:, ::2], sum(some(each, 4, 6)[:, ::2] for each in range(size)))
    torch.testing.assert_close(wide[:, 1::2], rest)
    with torch.inference_mode():
        made_there = [torch.ones(4, 6)[:, ::2] for _ in range(2)]
        waits = [dist.all_reduce(tensor, async_op=True) for tensor in made_there]
    waits[0].wait()
    waits[1].get_future().wait()
    assert all((tensor == size).all() for tensor in made_there)
    transposed = some(rank, 3, 5).t()
    dist.broadcast(transposed, 1)
    torch.testing.assert_close(transposed, some(1, 3, 5).t())
    numbers = some(rank, 4, dtype=torch.complex64)
    dist.all_reduce(numbers)
    torch.testing.assert_close(numbers, sum(some(each, 4, dtype=torch.complex64) for each in range(size)))
    for name in ("PRODUCT", "MIN", "MAX"):
        reduction = getattr(dist.ReduceOp, name)
        kept = numbers.clone()
        for refused in (
            lambda: dist.reduce(kept, 0, reduction),
            lambda: dist.reduce_scatter(kept[:1], [kept[:1]] * size, reduction),
        ):
            try:
                refused()
                raise AssertionError(f"complex numbers were reduced by {name}")
            except towline.Unsupported as error:
                assert f"complex numbers can't be reduced by {name.lower()}" in str(error), error
        assert (kept == numbers).all()
    wide = torch.zeros(4, 2, dtype=torch.complex64)
    lying = some(1, 4, dtype=torch.complex64).conj() if rank == 1 else wide[:, 0] if rank == 0 else wide[:, 0].clone()
    options = dist.BroadcastOptions()
    options.rootRank = 1
    world.broadcast([lying], options).wait()  # dist.broadcast takes no conjugate
    assert (lying == some(1, 4, dtype=torch.complex64).conj()).all()
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar, dist.ReduceOp.AVG)
    assert scalar.item() == sum(range(size)) / size
    dist.all_reduce(torch.zeros(0))
    for async_op in (False, True):
        shared = torch.full((2,), -1.0)
        work = dist.all_gather([shared] * size, torch.full((2,), float(rank)), async_op=async_op)
        if async_op:
            work.wait()
        assert shared.tolist() == [size - 1.0] * 2
    half = torch.full((1000,), 0.1, dtype=torch.bfloat16)
    dist.all_reduce(half)
    assert (half == torch.tensor(size * torch.tensor(0.1, dtype=torch.bfloat16).item(), dtype=torch.bfloat16)).all()
    flags = torch.tensor([rank == 0, True])
    dist.all_reduce(flags, dist.ReduceOp.MIN)
    assert flags.tolist() == [False, True]
    for factor in (2.5, torch.tensor([2.5], device="cpu")):
        scaled = torch.ones(3)
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(factor))
        assert scaled.tolist() == [2.5 * size] * 3


def works(world) -> None:
    rank, size = world.rank(), world.size()
    tensors = [torch.full((1000,), float(rank + step)) for step in range(10)]
    all_of_them = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in all_of_them]
    doubled = futures[3].then(lambda future: future.value()[0] * 2)
    for work in reversed(all_of_them):
        work.wait()
    torch.futures.wait_all(futures)
    for step, tensor in enumerate(tensors):
        assert tensor[0] == sum(each + step for each in range(size))
    assert doubled.wait()[0] == 2 * tensors[3][0]
    assert all(work.is_completed() and work.is_success() and work.exception() is None for work in all_of_them)
    if rank == 0:  # the others come once it has looked
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert not work.is_completed()
        dist.send(torch.zeros(1), 1)
    else:
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
        work = dist.all_reduce(torch.ones(2), async_op=True)
    limit = time.monotonic() + TIMEOUT
    while not work.is_completed():  # nobody waits for it
        assert time.monotonic() < limit
    for _ in range(20):  # nobody keeps them
        dist.all_reduce(torch.ones(4096), async_op=True)
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait(timedelta(seconds=TIMEOUT))


def messages(world) -> None:
    rank, size = world.rank(), world.size()
    right, left = (rank + 1) % size, (rank - 1) % size
    mine, theirs = some(rank, 50), torch.zeros(50)
    if rank % 2:
        dist.recv(theirs, left, tag=3)
        dist.send(mine, right, tag=3)
    else:
        dist.send(mine, right, tag=3)
        dist.recv(theirs, left, tag=3)
    torch.testing.assert_close(theirs, some(left, 50))
    into = [torch.zeros(50), torch.zeros(50)]
    operations = [dist.P2POp(dist.isend, mine, peer) for peer in (left, right)]
    operations += [dist.P2POp(dist.irecv, one, peer) for one, peer in zip(into, (left, right))]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    torch.testing.assert_close(into, [some(left, 50), some(right, 50)])
    # Into a tensor with holes, whichever way its end is learnt of.
    for step, learn in enumerate((lambda work: work.wait(), lambda work: work.get_future().wait())):
        wide = torch.zeros(50, 2)
        sending, receiving = dist.isend(mine, right, tag=step), dist.irecv(wide[:, 1], left, tag=step)
        learn(receiving)
        sending.wait()
        torch.testing.assert_close(wide[:, 1], some(left, 50))
        assert not wide[:, 0].any()


def messages_of_anyone(world) -> None:
    """Receives from the rank that sends first."""
    rank, size = world.rank(), world.size()
    if rank == 0:
        values = [torch.zeros(3, 2)[:, 0] for _ in range(1, size)]
        sources = [dist.recv(value) for value in values]
        assert sorted(sources) == list(range(1, size))
        assert [value.tolist() for value in values] == [[float(source)] * 3 for source in sources]
    else:
        dist.send(torch.full((3,), float(rank)), 0)


def other_types(world) -> str:
    """A receive of another type than what was sent."""
    rank, group = world.rank(), dist.new_group([0, 1])
    if rank > 1:
        return ""
    try:
        if rank == 0:
            dist.send(torch.ones(1), 1, group=group)
            dist.barrier(group=group)
        else:
            dist.recv(torch.ones(1, dtype=torch.int32), 0, group=group)
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def beside_the_stream(world) -> None:
    """On the model: an operation comes after what the current stream holds, wait() orders and does not wait."""
    from towline import _torch_gpu

    gpu, size = _torch_gpu.gpu, world.size()
    gpu.settles = False
    try:
        gpu.model.hold(gpu.current, True)
        tensor = torch.ones(3000)
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        work.wait()
        assert not work.is_completed() and tensor[0] == 1
        gpu.model.hold(gpu.current, False)
        gpu.model.drain(gpu.current)
        assert work.is_completed() and work.is_success()
        assert tensor[0] == size
        dist.all_reduce(tensor)  # into the current stream itself
        gpu.model.drain(gpu.current)
        assert tensor[0] == size * size
    finally:
        gpu.settles = True


def dropped_works(world) -> None:
    """On the model: an operation keeps its tensors until it has ended, though nobody keeps its Work."""
    import gc
    import weakref

    from towline import _torch_gpu

    gpu = _torch_gpu.gpu
    gpu.model.hold(gpu.current, True)
    tensor = torch.ones(3000)
    alive = weakref.ref(tensor)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    gc.collect()
    assert alive() is not None
    gpu.model.hold(gpu.current, False)
    limit = time.monotonic() + TIMEOUT
    kept = torch.ones(1)
    while kept.item() != 0:  # a later operation lets go of it
        kept.fill_(alive() is not None)
        dist.all_reduce(kept, dist.ReduceOp.MAX, async_op=True).wait()
        assert time.monotonic() < limit


def copied_back(world) -> None:
    """On the model: the stream that waits copies what travelled to its place, and its memory is kept until then."""
    from towline import _torch_gpu

    noted: list = []
    _torch_gpu.gpu.used = lambda tensors, index: noted.append(tensors)
    try:
        column = torch.ones(4, 6)[:, ::2]
        dist.all_reduce(column, async_op=True).wait()
        gathered = [torch.zeros(6)[::2] for _ in range(world.size())]
        dist.all_gather(gathered, torch.ones(3), async_op=True).wait()
        parts = [torch.zeros(3) for _ in range(world.size())] if world.rank() == 0 else None
        dist.gather(torch.ones(6)[::2], parts, dst=0, async_op=True).wait()
    finally:
        del _torch_gpu.gpu.used
    assert (column == world.size()).all() and all((part == 1).all() for part in gathered)
    assert [len(tensors) for tensors in noted[:2]] == [4, world.size()]
    assert noted[0].is_contiguous() and noted[0].data_ptr() != column.data_ptr()


def beside_a_stream_of_a_gpu(world) -> None:
    """An operation comes after what the current stream holds; wait() orders what follows and does not wait."""
    size = world.size()
    tensor, result = torch.zeros(300_000), torch.zeros(300_000)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # cycles
    tensor.fill_(1)
    work = dist.all_reduce(tensor, async_op=True)
    assert not work.is_completed()
    work.wait()
    result.copy_(tensor)
    assert not work.is_completed()  # the host is ahead of both
    torch.cuda.synchronize()
    assert (result == size).all() and work.is_completed() and work.is_success()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        dist.all_reduce(result)
    other.synchronize()
    assert (result == size * size).all()
    doubled = dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0] * 2)
    assert (doubled.wait() == 2 * size * size).all()


def dropped_works_on_a_gpu(world) -> None:
    """torch does not give an operation's memory to others before the operation has ended."""
    tensor = torch.ones(3_000_000)
    place = tensor.data_ptr()
    dist.all_reduce(torch.zeros(1))
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    others = [torch.ones(3_000_000) for _ in range(8)]
    assert place not in {one.data_ptr() for one in others}
    torch.cuda.synchronize()


def captured(world) -> None:
    """Operations of both kinds and messages in a CUDA graph."""
    rank, size = world.rank(), world.size()
    first, second, received = torch.ones(1000), torch.ones(200_000), torch.zeros(5000)
    dist.all_reduce(torch.zeros(1))
    dist.barrier()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(first)
        work = dist.all_reduce(second, async_op=True)
        first.mul_(2)
        work.wait()
        if size == 2:
            batch = [dist.P2POp(dist.isend, first[:5], 1 - rank), dist.P2POp(dist.irecv, received[:5], 1 - rank)]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (first == float(2 * size) ** 3).all() and (second == float(size) ** 3).all()
    assert size != 2 or (received[:5] == first[:5]).all()


def messages_together(world) -> None:
    """A batch is one work, and uses one communicator of all ranks."""
    rank, size = world.rank(), world.size()
    group = dist.new_group()
    into = [torch.zeros(200_000) for _ in range(size)]
    others = [(rank + step) % size for step in range(1, size)]
    batch = [dist.P2POp(dist.isend, torch.full((200_000,), 10.0 * rank + peer), peer, group) for peer in others]
    batch += [dist.P2POp(dist.irecv, into[peer], peer, group) for peer in others]
    works = dist.batch_isend_irecv(batch)
    assert len(works) == 1 or not _torch_group.TAKES_BACKENDS
    for work in works:
        work.wait()
    for peer in others:
        assert (into[peer] == 10.0 * peer + rank).all()
    dist.destroy_process_group(group)


def disagree_on_gpus(world) -> str:
    """Ranks learn of it at their next operation, of whatever memory."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    try:
        dist.all_reduce(torch.zeros(3 if world.rank() else 4), group=group)
        limit = time.monotonic() + TIMEOUT
        while time.monotonic() < limit:
            dist.barrier(group=group)
        return "nothing was raised"
    except RuntimeError as error:
        return str(error)


def late_on_gpus(world) -> str:
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.all_reduce(torch.zeros(1), group=group)
    if world.rank() == 0:
        dist.barrier()
        return ""
    try:
        work = dist.all_reduce(torch.zeros(1), group=group, async_op=True)
        work.wait()
        limit = time.monotonic() + TIMEOUT
        while not work.is_completed():
            assert time.monotonic() < limit
        assert not work.is_success() and work.exception() is not None
        work.wait()
        return "nothing was raised"
    except RuntimeError as error:
        return str(error)
    finally:
        dist.barrier()


def objects(world) -> None:
    rank, size = world.rank(), world.size()
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank * 1000})
    assert everything == [{"rank": each, "text": "x" * each * 1000} for each in range(size)]
    told = [("from", rank), None] if rank == 1 else [None, None]
    dist.broadcast_object_list(told, 1)
    assert told == [("from", 1), None]
    given = [None]
    dist.scatter_object_list(given, [f"for {each}" for each in range(size)] if rank == 0 else None, 0)
    assert given == [f"for {rank}"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * rank, gathered, 0)
    assert gathered == ([each * each for each in range(size)] if rank == 0 else None)
    if rank == 0:
        dist.send_object_list([1, "two"], 1)
    if rank == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        assert received == [1, "two"]


def functional(world) -> None:
    import torch.distributed._functional_collectives as funcol

    rank, size = world.rank(), world.size()
    group = dist.group.WORLD
    mine = some(rank, size * 2, 3)
    everyone = [some(each, size * 2, 3) for each in range(size)]
    torch.testing.assert_close(funcol.all_reduce(mine, "sum", group) + 0, sum(everyone))
    torch.testing.assert_close(mine, everyone[rank])
    torch.testing.assert_close(funcol.all_gather_tensor(mine, 0, group) + 0, torch.cat(everyone))
    torch.testing.assert_close(funcol.all_gather_tensor(mine, 1, group) + 0, torch.cat(everyone, 1))
    scattered = funcol.reduce_scatter_tensor(mine, "sum", 0, group)
    torch.testing.assert_close(scattered + 0, sum(everyone)[2 * rank : 2 * rank + 2])
    swapped = funcol.all_to_all_single(mine, None, None, group)
    torch.testing.assert_close(swapped + 0, torch.cat([one[2 * rank : 2 * rank + 2] for one in everyone]))
    torch.testing.assert_close(funcol.broadcast(mine, 1, group) + 0, everyone[1])
    several = funcol.all_reduce_coalesced([mine, mine * 2], "sum", group)
    torch.testing.assert_close(several[1] + 0, 2 * sum(everyone))


def compiled(world) -> None:
    """torch's functional collectives in torch.compile: one graph, and what it gives without."""
    import torch.distributed._functional_collectives as funcol

    size, group = world.size(), dist.group.WORLD
    mine = some(world.rank(), size * 2, 3)

    def step(tensor):
        total = funcol.all_reduce(tensor, "sum", group)
        gathered = funcol.all_gather_tensor(total * 2, 0, group)
        scattered = funcol.reduce_scatter_tensor(gathered, "avg", 0, group)
        swapped = funcol.all_to_all_single(scattered, None, None, group)
        told = funcol.broadcast(swapped, 1, group)
        several = funcol.all_reduce_coalesced([told, total], "sum", group)
        in_place = told.clone()
        dist.all_reduce(in_place, group=group)
        return gathered.sum(), several[0], several[1], in_place

    plain = step(mine)
    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(mine), plain)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.up, self.down = (torch.nn.Linear(*sides, device="cpu").to(device) for sides in ((16, 64), (64, 8)))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(batch)))


def train(model, rank: int, steps: int = 5) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        loss = model(some(100 * step + rank, 12, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def data_parallel(world) -> None:
    from torch.nn.parallel import DistributedDataParallel

    def run(group):
        model = DistributedDataParallel(Model(), process_group=group, bucket_cap_mb=0.001)
        losses = train(model, dist.get_rank())
        return [torch.tensor(losses), *(one.detach() for one in model.parameters())]

    both(run)


def fully_sharded(world) -> None:
    """Like DDP over gloo: where FSDP2 asks for averages, gloo of torch 2.7 gives sums."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def run(group):
        if group is not dist.group.WORLD:
            model = DistributedDataParallel(Model(), process_group=group)
            losses = train(model, dist.get_rank())
            return [torch.tensor(losses), *(one.detach() for one in model.parameters())]
        mesh = DeviceMesh.from_group(group, device)
        model = Model()
        for part in (model.up, model.down, model):
            fully_shard(part, mesh=mesh)
        losses = train(model, dist.get_rank())
        return [torch.tensor(losses), *(one.detach().full_tensor() for one in model.parameters())]

    both(run)


def mesh(world) -> tuple:
    from torch.distributed.device_mesh import init_device_mesh

    size = world.size()
    plane = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("outer", "inner"))
    inner, outer = torch.ones(1), torch.tensor([float(world.rank())])
    dist.all_reduce(inner, group=plane.get_group("inner"))
    dist.all_reduce(outer, group=plane.get_group("outer"))
    assert outer.item() == sum(plane["outer"].mesh.tolist())
    return inner.item(), [dist.get_backend(plane.get_group(name)) for name in ("outer", "inner")]


def tensor_parallel(world) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    expected, model = Model(), Model()
    line = init_device_mesh(device, (world.size(),))
    model = parallelize_module(model, line, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    batch = some(1, 12, 16)
    output = model(batch)
    torch.testing.assert_close(output, expected(batch))
    output.square().mean().backward()
    expected(batch).square().mean().backward()
    torch.testing.assert_close(model.up.weight.grad.full_tensor(), expected.up.weight.grad)


def groups(world) -> list:
    told = []
    for ranks in ([0, 1], [1, 2]):
        group = dist.new_group(ranks)
        if world.rank() in ranks:
            tensor = torch.ones(2)
            dist.all_reduce(tensor, group=group)
            told.append(tensor[0].item())
            dist.destroy_process_group(group)
    return told


def bound_to_a_device(world, folder: str) -> list:
    """The job once more, each process bound to a GPU of the model, and groups made by the backend's name."""
    from unittest import mock

    global _gloo
    rank, size = world.rank(), world.size()
    dist.destroy_process_group()
    _gloo = None
    gpu, told = torch.device("cuda", 0), []
    with (  # torch counts GPUs, and the backend asks where it is meant, neither of which finds any here
        mock.patch.object(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda")),
        mock.patch.object(torch.accelerator, "device_count", lambda: 1),
        mock.patch.dict(dist.Backend.backend_capability, {torch_distributed.NAME: ["cpu", "cuda"]}),
    ):
        start(rank, size, f"{folder}/bound", device_id=gpu)
        assert not _torch_group.TAKES_BACKENDS or dist.group.WORLD.bound_device_id == gpu
        for backend in ("towline", "cpu:towline,cuda:towline"):
            group = dist.new_group(backend=backend)
            tensor = torch.full((1000,), rank + 1.0)
            dist.all_reduce(tensor, group=group)
            told.append(tensor[-1].item())
            dist.destroy_process_group(group)
        dist.destroy_process_group()
    start(rank, size, f"{folder}/unbound")
    return told


def another_backend_for_gpus(world) -> str:
    """A tensor on a GPU where the program asked for another backend there."""
    group = dist.new_group(backend="cpu:towline,cuda:gloo")
    try:
        dist.all_reduce(torch.ones(2), group=group)
    except towline.Unsupported as error:
        return str(error)
    return "nothing"


def again(world, folder: str) -> list:
    """The whole thing once more, with the device named."""
    global _gloo
    rank, size = world.rank(), world.size()
    dist.destroy_process_group()
    _gloo = None
    start(rank, size, f"{folder}/again", "cpu:towline")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    start(rank, size, f"{folder}/back")
    return [tensor.item(), dist.get_backend()]


def disagree(world) -> str:
    try:
        dist.all_reduce(torch.zeros(3 if world.rank() else 4), group=dist.new_group())
        return "nothing was raised"
    except Exception as error:
        return str(error)


def monitored(world) -> list:
    """Barriers that tell who did not come: all come, then rank 0 alone."""
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=60)
    backend.monitored_barrier(options, True)
    told = []
    if world.rank() == 0:
        options.timeout = timedelta(milliseconds=100)
        try:
            backend.monitored_barrier(options, True)
        except RuntimeError as error:
            told.append(str(error))
    dist.barrier()
    try:
        dist.barrier(group=group)
    except Exception as error:
        told.append(str(error))
    return told


def monitored_late(world) -> str:
    """A barrier that the last rank does not come to, and rank 0 comes to after the others, with a longer time limit."""
    rank, size = world.rank(), world.size()
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=4 if rank == 0 else 2)
    try:
        if rank == 0:
            for other in range(1, size - 1):
                dist.recv(torch.zeros(1), other)
        elif rank != size - 1:
            dist.send(torch.zeros(1), 0)
        if rank != size - 1:
            backend.monitored_barrier(options, False)
        dist.barrier(group=group)
    except RuntimeError as error:
        return str(error)
    finally:
        dist.barrier()
    return "nothing was raised"


def late(world) -> str:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if world.rank() == 0:
        dist.barrier()
        return ""
    try:
        dist.all_reduce(torch.zeros(1), group=group)
        return "nothing was raised"
    except Exception as error:
        return str(error)
    finally:
        dist.barrier()


def norm(world) -> None:
    """all_reduce, addition and RMSNorm as one operator, beside the steps, alone and in torch.compile."""
    from towline.torch_norm import all_reduce_rms_norm

    rank, size = world.rank(), world.size()
    for dtype, within in ((torch.float32, 1e-5), (torch.bfloat16, 1 / 128)):
        for shape in ((2, 512), (3, 5, 96), (40, 2048), (1, 33)):
            count = torch.Size(shape).numel()
            parts = [some(each, count, 1).reshape(shape).to(dtype) for each in range(size)]
            before = some(50, count, 1).reshape(shape).to(dtype)
            weight = some(51, shape[-1], 1).flatten().to(dtype)
            total = before + sum(part.float() for part in parts).to(dtype)
            expected = torch.nn.functional.rms_norm(total.float(), shape[-1:], weight.float(), 1e-5)
            residual = before.clone()
            given = parts[rank].clone()
            got = all_reduce_rms_norm(given, residual, weight, 1e-5)
            torch.testing.assert_close(given, parts[rank], rtol=0, atol=0)
            torch.testing.assert_close(residual, total, rtol=within, atol=within)
            torch.testing.assert_close(got.float(), expected, rtol=2 * within, atol=2 * within)
    plain = all_reduce_rms_norm(parts[rank])
    summed = sum(part.float() for part in parts)
    torch.testing.assert_close(plain.float(), torch.nn.functional.rms_norm(summed, shape[-1:], None, 1e-6), rtol=0.02, atol=0.02)

    def step(part, residual):
        return all_reduce_rms_norm(part, residual, weight, 1e-5) * 2

    once, again = before.clone(), before.clone()
    torch.testing.assert_close(
        torch.compile(step, fullgraph=True, backend="aot_eager")(parts[rank], once), step(parts[rank], again)
    )
    torch.testing.assert_close(once, again)

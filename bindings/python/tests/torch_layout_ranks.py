"""What each rank does in the tests of sparse and expanded tensors, and of groups that are split, over torch.distributed."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

import towline
from torch_ranks import both, gloo, some


def embedding_gradient(rank: int, rows: int, dtype=torch.float32) -> torch.Tensor:
    """Rows of a sparse tensor of 6 by 3, some twice."""
    places = torch.randint(0, 6, (1, rows), generator=torch.Generator().manual_seed(rank))
    return torch.sparse_coo_tensor(places, some(rank, rows, 3, dtype=dtype), (6, 3))


def sparse(world) -> None:
    """Any number of entries on each rank, none on one and none on all; scalars in two dimensions; averages, 16 bits."""
    rank, size = world.rank(), world.size()
    for rows in (lambda each: 4 * each, lambda each: 0):
        for async_op in (False, True):
            ours, theirs = (embedding_gradient(rank, rows(rank)) for _ in range(2))
            work = dist.all_reduce(ours, async_op=async_op)
            if async_op:
                (out,) = work.get_future().wait()
                assert out is ours or (out.to_dense() == ours.to_dense()).all()
            dist.all_reduce(theirs, group=gloo())
            torch.testing.assert_close(ours.to_dense(), theirs.to_dense())
            ours.coalesce().values().mul_(2.0)  # which inference mode would not allow
    matrix = torch.sparse_coo_tensor([[0, rank], [1, rank]], [1, 2], (size + 1, size + 1))
    dist.all_reduce(matrix)
    assert matrix.to_dense().diagonal()[1:size].tolist() == [2] * (size - 1) and matrix.to_dense()[0, 1] == size
    for dtype in (torch.float32, torch.bfloat16):
        average = embedding_gradient(rank, 5, dtype)
        dist.all_reduce(average, dist.ReduceOp.AVG)
        exact = sum(embedding_gradient(each, 5, dtype).coalesce().to_dense().float() for each in range(size)) / size
        torch.testing.assert_close(average.to_dense(), exact.to(dtype))
    with torch.inference_mode():
        made_there = embedding_gradient(rank, 2)
        dist.all_reduce(made_there)
    try:
        dist.all_reduce(embedding_gradient(0, 2), dist.ReduceOp.MAX)
        raise AssertionError("a maximum was not refused")
    except towline.Unsupported as error:
        assert "sparse tensors can't be reduced by max; make them dense first" in str(error), error
    plain, longer = (torch.sparse_coo_tensor([[0]], [1.0], (length,)) for length in (4, 5))
    matrix, wide = torch.sparse_coo_tensor([[0], [0]], [1.0], (4, 4)), torch.sparse_coo_tensor([[0]], torch.ones(1, 4), (4, 4))
    for first, second, said in (
        (plain, longer, "rank 0 has shape [4] with 1 sparse dimensions, rank 2 [5] with 1"),
        (plain, matrix, "rank 0 has shape [4] with 1 sparse dimensions, rank 2 [4, 4] with 2"),
        (matrix, wide, "rank 0 has shape [4, 4] with 2 sparse dimensions, rank 2 [4, 4] with 1"),
    ):
        try:
            dist.all_reduce((first if rank < 2 else second).clone())
            raise AssertionError("shapes that differ were not refused")
        except towline.InvalidArgument as error:
            assert said in str(error), error
    dist.all_reduce(total := plain.clone())  # nothing is broken
    assert total.to_dense()[0] == size


def sparse_data_parallel(world) -> None:
    from torch.nn.parallel import DistributedDataParallel

    def run(group):
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 2))
        model = DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([step, world.rank(), 8])).square().sum().backward()
            optimizer.step()
        return [one.detach() for one in model.parameters()]

    both(run)


def expanded(world) -> None:
    """Elements that share memory: each is written once, or not at all where they could differ."""
    rank, size = world.rank(), world.size()
    reduced = torch.full((2, 1), rank + 1.0).expand(2, 3)
    dist.all_reduce(reduced)
    assert reduced.tolist() == [[size * (size + 1) / 2] * 3] * 2
    given = torch.full((2, 1), 5.0).expand(2, 3)
    came = torch.zeros(2, 3)
    dist.broadcast(given if rank == 0 else came, 0)
    assert rank == 0 or came.tolist() == [[5.0] * 3] * 2
    for outputs in ([given] * size, [torch.zeros(2, 1).expand(2, 3) for _ in range(size)]):
        try:
            dist.all_gather(outputs, torch.zeros(2, 3))
            raise AssertionError("it was not refused")
        except towline.InvalidArgument as error:
            assert "expanded tensor, whose elements share memory" in str(error), error


def splits(world) -> list:
    """Groups by split_group: in an order of their own, of one rank, and one that leaves out ranks."""
    rank, last = world.rank(), world.size() - 1
    group = dist.split_group(split_ranks=[[last, 0, 1], [*range(2, last)]], timeout=timedelta(seconds=45))
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    told = [group.rank(), group.size(), tensor.item(), group._get_backend(torch.device("cpu")).communicator.timeout]
    dist.destroy_process_group(group)
    try:
        group = dist.split_group(split_ranks=[[0, 1]])
        dist.barrier(group=group)
        dist.destroy_process_group(group)
        return [*told, ""]
    except towline.Unsupported as error:
        return [*told, str(error)]

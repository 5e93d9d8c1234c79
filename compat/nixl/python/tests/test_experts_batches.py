"""High-throughput mode of nixl_ep.Buffer, over GPUs made of host memory, or over a GPU where there is one: ranks are threads."""

from __future__ import annotations

import inspect
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import experts_model  # noqa: E402
import nixl_ep  # noqa: E402
from nixl_ep import Buffer, Config, EventOverlap, _library  # noqa: E402
from nixl_ep.utils import EventHandle  # noqa: E402
from test_experts import Comm, RealGpu, gpu, run_ranks  # noqa: E402, F401

LOCAL, TOKENS, HIDDEN, TOPK, SCALES = 3, 40, 128, 4, 2
BYTES = 1 << 20


class Rank:
    def __init__(self, number: int, ranks: int, meeting: threading.Barrier, size: int, timeout_ms: int, a_host: int = 0, **how) -> None:
        self.number, self.ranks, self.meeting = number, ranks, meeting
        self.buffer = Buffer(rank=number, explicitly_destroy=True, low_latency_mode=False, timeout_ms=timeout_ms, **how)
        self.gpu = self.buffer._gpu
        if a_host:
            self.gpu.host = f"host {number // a_host}"
        self.buffer.update_memory_buffers(ranks, LOCAL, num_rdma_bytes=0, num_nvl_bytes=size)
        self.config = Config(4, 8, 64, 8, 32)
        self.kept: list = []  # host memory is freed at once, whatever a stream still does with it

    def tokens(self, seed: int, rank: int | None = None):
        """x, topk_idx and topk_weights of a rank; on the processor."""
        generator = torch.Generator().manual_seed(1000 * seed + (self.number if rank is None else rank))
        count = int(torch.randint(0, TOKENS + 1, (1,), generator=generator))
        x = torch.randn((count, HIDDEN), generator=generator).to(torch.bfloat16)
        routes = torch.randint(0, self.ranks * LOCAL, (count, TOPK), generator=generator)
        routes[torch.rand(routes.shape, generator=generator) < 0.1] = -1
        return x, routes, torch.rand(routes.shape, generator=generator)

    def names(self, routes, rank: int):
        return (routes >= 0) & (routes // LOCAL == rank)

    def here(self, *tensors):
        moved = tuple(tensor.to(self.gpu.device) for tensor in tensors)
        self.kept.append(moved)
        return moved

    def event(self) -> EventOverlap:
        if isinstance(self.gpu, experts_model.ModelGpu):
            return EventOverlap(EventHandle(experts_model._Event(self.gpu, self.gpu.stream())))
        return Buffer.capture()

    def layout(self, routes, **how):
        per_rank, per_host, per_expert, in_rank, event = self.buffer.get_dispatch_layout(routes, self.ranks * LOCAL, **how)
        self.kept.append((per_rank, per_expert, in_rank))
        return {"num_tokens_per_rank": per_rank, "num_tokens_per_rdma_rank": per_host, "num_tokens_per_expert": per_expert, "is_token_in_rank": in_rank}

    def expected(self, seed: int, make=lambda x: x):
        """recv_x, recv_topk_idx, recv_topk_weights, and where each rank's rows end."""
        rows, routes, weights, ends = [], [], [], []
        for rank in range(self.ranks):
            x, named, factors = self.tokens(seed, rank)
            mine = self.names(named, self.number)
            there = mine.any(dim=1)
            rows.append(make(x)[there])
            routes.append(torch.where(mine, named % LOCAL, -1)[there])
            weights.append(torch.where(mine, factors, 0.0)[there])
            ends.append(int(there.sum()) + (ends[-1] if ends else 0))
        return torch.cat(rows), torch.cat(routes), torch.cat(weights), ends

    def counts(self, seed: int, alignment: int = 1) -> list[int]:
        named = torch.cat([self.tokens(seed, rank)[1].flatten() for rank in range(self.ranks)])
        counts = [int((named == self.number * LOCAL + expert).sum()) for expert in range(LOCAL)]
        return [-(-count // alignment) * alignment for count in counts]

    def results(self, x):
        return x * (self.number + 1)

    def sums(self, seed: int, biases):
        x, routes, _ = self.tokens(seed)
        sums = torch.zeros(x.shape)
        for bias in biases:
            sums = sums + bias.to(torch.float32)
        for rank in range(self.ranks):
            there = self.names(routes, rank).any(dim=1)
            sums = sums + torch.where(there[:, None], (x * (rank + 1)).to(torch.float32), 0.0)
        return sums.to(torch.bfloat16)

    def finish(self, event) -> None:
        if event.event is not None:
            self.gpu.wait(event.event._event)
        self.gpu.drain()

    def round(self, seed: int, biases: int = 0, **how) -> None:
        """Dispatch, dispatch again by its handle, and combine: all of it, compared."""
        x, routes, weights = self.here(*self.tokens(seed))
        before = {"previous_event": self.event()} if how.get("async_finish") else {}
        got, named, factors, counts, handle, event = self.buffer.ht_dispatch(
            x, **self.layout(routes), topk_idx=routes, topk_weights=weights, config=self.config, **before, **how
        )
        self.finish(event)
        self.kept += [got, named, factors, handle]
        wanted, wanted_routes, wanted_weights, ends = self.expected(seed)
        assert torch.equal(got.cpu(), wanted)
        assert torch.equal(named.cpu(), wanted_routes)
        assert torch.equal(factors.cpu(), wanted_weights)
        assert counts == self.counts(seed)
        assert handle[-4].cpu().tolist() == ends
        more = x + 1
        again, *nothing, event = self.buffer.ht_dispatch(more, handle=handle, config=self.config, **how)
        self.finish(event)
        assert nothing == [None] * 4
        assert torch.equal(again.cpu(), self.expected(seed, lambda x: x + 1)[0])
        added = tuple(self.here(*(torch.randn(x.shape).to(torch.bfloat16) for _ in range(biases))))
        results = self.results(got)
        self.kept += [more, again, results, added]
        bias = {0: None, 1: added and added[0], 2: added}[biases]
        sums, back, event = self.buffer.ht_combine(results, handle, factors, bias, self.config, **how)
        self.finish(event)
        assert torch.equal(sums.cpu(), self.sums(seed, [bias.cpu() for bias in added]))
        assert torch.equal(back.cpu(), torch.where(routes.cpu() >= 0, weights.cpu(), 0.0))


def run(ranks: int, body, size: int = BYTES, timeout_ms: int = 60_000, meet=None, connects: bool = True, a_host: int = 0) -> None:
    """meet: what a rank's Buffer meets the others by. a_host: how many ranks count as on one host; 0: all."""

    def make(number: int, store, meeting: threading.Barrier) -> Rank:
        rank = Rank(number, ranks, meeting, size, timeout_ms, a_host, **(meet(number) if meet else {"tcp_store_group": store}))
        if connects:
            rank.buffer.connect_ranks([other for other in range(ranks) if other != number])
        return rank

    run_ranks(ranks, make, body)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tokens_go_to_their_ranks_and_come_back_summed(gpu, ranks):
    def body(rank):
        for seed in range(6):
            rank.round(seed, biases=seed % 3)

    run(ranks, body)


def test_memory_for_less_than_a_batch_makes_rounds(gpu):
    def body(rank):
        for seed in range(3):
            rank.round(seed)

    run(3, body, size=16384)


def test_on_the_communication_stream(gpu):
    def body(rank):
        for seed in range(3):
            rank.round(seed, async_finish=True, allocate_on_comm_stream=True)

    run(2, body)


@pytest.mark.parametrize("columns", [False, True])
def test_fp8_comes_with_its_scales(gpu, columns):
    """Of any strides: here row by row, or column by column."""

    def of(rank, seed: int, number: int):
        x = rank.tokens(seed, number)[0].to(torch.float8_e4m3fn)
        generator = torch.Generator().manual_seed(100 * seed + number)
        return x, torch.rand((x.shape[0], SCALES), generator=generator)

    def body(rank):
        for seed in range(3):
            x, scales = rank.here(*of(rank, seed, rank.number))
            if columns:
                scales = scales.T.contiguous().T
            routes = rank.here(rank.tokens(seed)[1])[0]
            (got, found), named, factors, counts, handle, _ = rank.buffer.ht_dispatch(
                (x, scales), **rank.layout(routes), expert_alignment=16
            )
            rank.gpu.drain()
            assert named is None and factors is None
            assert counts == rank.counts(seed, 16)
            sources = [of(rank, seed, number) for number in range(rank.ranks)]
            there = [rank.names(rank.tokens(seed, number)[1], rank.number).any(dim=1) for number in range(rank.ranks)]
            assert torch.equal(got.cpu().view(torch.uint8), torch.cat([x.view(torch.uint8)[mine] for (x, _), mine in zip(sources, there)]))
            assert torch.equal(found.cpu(), torch.cat([scales[mine] for (_, scales), mine in zip(sources, there)]))
            rank.kept += [x, scales, got, found, handle]

    run(2, body)


@pytest.mark.parametrize("ranks", [4, 16])
def test_the_layout_counts(gpu, ranks):
    buffer = Buffer(low_latency_mode=False, explicitly_destroy=True)
    buffer.update_memory_buffers(ranks, LOCAL, BYTES)
    device = buffer._gpu.device
    experts = ranks * LOCAL
    routes = torch.randint(-1, experts, (50, TOPK), device=device)
    per_rank, per_host, per_expert, in_rank, event = buffer.get_dispatch_layout(routes, experts)
    wanted = torch.stack([((routes >= 0) & (routes // LOCAL == rank)).any(dim=1) for rank in range(ranks)], dim=1)
    assert torch.equal(in_rank, wanted) and in_rank.is_contiguous()
    assert per_rank.dtype == torch.int32 and torch.equal(per_rank, wanted.sum(dim=0))
    assert per_expert.dtype == torch.int32
    assert per_expert.tolist() == [int((routes == expert).sum()) for expert in range(experts)]
    if ranks == 4:
        assert per_host is None
    else:
        hosts = torch.stack([wanted[:, :8].any(dim=1), wanted[:, 8:].any(dim=1)], dim=1)
        assert per_host.dtype == torch.int32 and torch.equal(per_host, hosts.sum(dim=0))
    assert event.event is None
    buffer.destroy()


def test_ranks_meet_by_a_communicator(gpu):
    """As mpi4py's."""
    meeting = threading.Barrier(2, timeout=60)
    given: dict = {}

    class Comm:
        def __init__(self, rank: int) -> None:
            self._rank = rank

        def allgather(self, mine):
            given[self._rank] = mine
            meeting.wait()
            all_given = [given[rank] for rank in range(2)]
            meeting.wait()
            return all_given

    run(2, lambda rank: rank.round(1), meet=lambda number: {"comm": Comm(number)})


def test_a_rank_that_fails_at_a_communicator_is_named_by_the_others(gpu):
    meeting, given = threading.Barrier(3, timeout=60), {}

    def body(rank):
        def fail(*_):
            raise OSError("no way")

        if rank.number == 1:
            rank.buffer._connect = fail
        with pytest.raises(OSError if rank.number == 1 else RuntimeError, match="no way" if rank.number == 1 else "rank 1: no way"):
            rank.buffer.connect_ranks([0, 1, 2])

    run(3, body, meet=lambda number: {"comm": Comm(meeting, given, number)}, connects=False)


def test_buffers_of_both_modes_meet_by_one_store(gpu):
    def body(rank):
        other = Buffer(rank=rank.number, explicitly_destroy=True, tcp_store_group=rank.buffer.tcp_store_group)
        other.update_memory_buffers(2, 4, BYTES)
        other.connect_ranks([0, 1])
        rank.meeting.wait()
        rank.buffer.connect_ranks([0, 1])
        rank.meeting.wait()
        rank.round(0)
        other.destroy()  # takes away its own description alone
        rank.meeting.wait()
        there = rank.buffer._meeting.fetch(1 - rank.number, 1.0)
        rank.buffer.disconnect_ranks([1 - rank.number])
        rank.meeting.wait()
        rank.buffer._member.connect(1 - rank.number, there, 10**9)
        rank.buffer.update_mask_buffer(1 - rank.number, False)
        rank.round(1)

    run(2, body, connects=False)


def test_a_description_of_another_size_is_that_of_a_rank_that_was_here_before(gpu):
    def body(rank):
        if rank.number == 1:
            before = Buffer(rank=1, explicitly_destroy=True, low_latency_mode=False)
            before.update_memory_buffers(2, LOCAL, num_rdma_bytes=0, num_nvl_bytes=2 * BYTES)
            rank.buffer.tcp_store_group.set("NIXL_EP/high_throughput/1", before._member.describe())
            rank.meeting.wait()
            given_up.wait(60)
            rank.buffer.connect_ranks([0])
            before.destroy()
        else:
            connect = rank.buffer._member.connect

            def connect_and_tell(*how):
                try:
                    connect(*how)
                except _library.ExpertsError as error:
                    seen.append(error.status)
                    raise
                finally:
                    given_up.set()

            rank.buffer._member.connect = connect_and_tell
            rank.meeting.wait()
            rank.buffer.connect_ranks([1])
        rank.round(1)

    given_up, seen = threading.Event(), []
    run(2, body, connects=False)
    assert set(seen) == {"MISMATCH"}


def test_a_rank_that_does_not_come_is_named_and_all_go_on(gpu):
    def body(rank):
        rank.round(0)
        rank.meeting.wait()
        if rank.number == 0:
            x, routes, _ = rank.here(*rank.tokens(2))
            with pytest.raises(_library.ExpertsError, match="rank 1 is masked, or did not come") as caught:
                rank.buffer.ht_dispatch(x, **rank.layout(routes))
            assert caught.value.status == "TIMED_OUT"
            rank.meeting.wait()
        else:
            rank.meeting.wait()
            rank.buffer.update_mask_buffer(0, True)
            with pytest.raises(_library.ExpertsError, match="rank 0 is masked"):
                x, routes, _ = rank.here(*rank.tokens(2))
                rank.buffer.ht_dispatch(x, **rank.layout(routes))
            rank.gpu.drain()
        for _ in range(1):
            rank.meeting.wait()
            rank.buffer.disconnect_ranks([1 - rank.number])
            rank.buffer.connect_ranks([1 - rank.number])
        for seed in range(3, 6):
            rank.round(seed)

    run(2, body, timeout_ms=5000)  # which the rounds before must keep as well


@pytest.mark.parametrize("by", ["unmasking", "cleaning", "reconnecting"])
def test_a_handle_from_before_a_recovery_is_refused(gpu, by):
    """It may miss the rows of a rank that was lost."""

    def recover(rank):
        other = 1 - rank.number
        if by == "unmasking":
            rank.buffer.update_mask_buffer(other, False)
        elif by == "cleaning":
            rank.buffer.clean_mask_buffer()
        else:
            rank.buffer.disconnect_ranks([other])
            rank.buffer.connect_ranks([other])

    def body(rank):
        x, routes, weights = rank.here(*rank.tokens(0))
        layout = rank.layout(routes)
        got, named, factors, _, handle, _ = rank.buffer.ht_dispatch(x, **layout, topk_idx=routes, topk_weights=weights)
        rank.gpu.drain()
        rank.kept += [got, named, factors, handle]
        rank.meeting.wait()
        recover(rank)
        for call in (lambda: rank.buffer.ht_dispatch(x, handle=handle), lambda: rank.buffer.ht_combine(got, handle)):
            with pytest.raises(ValueError, match="from before ranks were masked, unmasked or disconnected.*dispatch anew"):
                call()
        rank.round(1)

    run(2, body)


def test_a_rank_that_is_lost_at_a_communicator_is_named_at_once(gpu, monkeypatch):
    """Nobody publishes another description there."""
    monkeypatch.setattr(nixl_ep.buffer, "_MEETING_SECONDS", 40.0)
    meeting, given = threading.Barrier(2, timeout=60), {}

    def body(rank):
        if rank.number == 1:
            before = Buffer(rank=1, explicitly_destroy=True, low_latency_mode=False)
            before.update_memory_buffers(2, LOCAL, num_rdma_bytes=0, num_nvl_bytes=BYTES)
            description = before._member.describe()
            before.destroy()
            rank.buffer._member.describe = lambda: description
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match="rank 1" if rank.number == 0 else "rank 0: .*rank 1"):
            rank.buffer.connect_ranks([1 - rank.number])
        assert time.monotonic() - begin < 20

    run(2, body, meet=lambda number: {"comm": Comm(meeting, given, number)}, connects=False)


@pytest.mark.parametrize("ranks, a_host", [(2, 1), (4, 2), (3, 2), (16, 8)])
def test_ranks_of_two_hosts(gpu, ranks, a_host):
    if gpu is RealGpu and ranks > 8:
        pytest.skip("so many ranks of one process have more streams than the driver has queues")

    def body(rank):
        for seed in range(4):
            rank.round(seed, biases=seed % 3, async_finish=seed == 3)

    run(ranks, body, a_host=a_host)


def test_ranks_of_two_hosts_make_rounds(gpu):
    def body(rank):
        for seed in range(2):
            rank.round(seed)

    run(4, body, size=1 << 16, a_host=2)


@pytest.mark.parametrize("ranks, a_host", [(2, 1), (4, 2)])
def test_a_rank_of_another_host_that_does_not_come_is_named_and_all_go_on(gpu, ranks, a_host):
    """With two ranks a host, the other one of its host reads in its memory what rank 0 has sent."""
    late = a_host

    def body(rank):
        others = [other for other in range(ranks) if other != late] if rank.number == late else [late]
        rank.round(0)
        rank.meeting.wait()
        if rank.number != late:
            x, routes, _ = rank.here(*rank.tokens(2))
            with pytest.raises(_library.ExpertsError, match=f": rank {late} is masked, or did not come"):
                rank.buffer.ht_dispatch(x, **rank.layout(routes))
        rank.meeting.wait()
        rank.buffer.disconnect_ranks(others)
        rank.meeting.wait()
        rank.buffer.connect_ranks(others)
        for seed in range(3, 6):
            rank.round(seed)

    run(ranks, body, timeout_ms=5000, a_host=a_host)


def test_a_rank_of_another_host_is_replaced(gpu):
    def body(rank):
        rank.round(0)
        rank.meeting.wait()
        if rank.number == 1:
            store = rank.buffer.tcp_store_group
            rank.buffer.destroy()
            rank.meeting.wait()
            rank.buffer = Rank(1, 2, rank.meeting, BYTES, 60_000, 1, tcp_store_group=store).buffer
            rank.gpu = rank.buffer._gpu
        else:
            rank.buffer.disconnect_ranks([1])
            rank.meeting.wait()
        rank.buffer.connect_ranks([1 - rank.number])
        for seed in range(1, 4):
            rank.round(seed)

    run(2, body, a_host=1)


def test_a_rank_is_replaced_by_one_of_another_host(gpu):
    """Of three of one host that have exchanged batches, and have cut their memory for that."""

    def body(rank):
        rank.round(0)
        rank.meeting.wait()
        if rank.number == 2:
            store = rank.buffer.tcp_store_group
            rank.buffer.destroy()
            rank.meeting.wait()
            rank.buffer = Rank(2, 3, rank.meeting, BYTES, 60_000, 1, tcp_store_group=store).buffer
            rank.gpu = rank.buffer._gpu
        else:
            rank.buffer.disconnect_ranks([2])
            rank.meeting.wait()
        rank.buffer.connect_ranks([other for other in range(3) if other != rank.number])
        for seed in range(1, 4):
            rank.round(seed)

    run(3, body, a_host=3)


def test_what_does_not_fit_is_refused(gpu):
    def body(rank):
        buffer = rank.buffer
        x, routes, weights = rank.here(*rank.tokens(1))
        layout = rank.layout(routes)
        got, named, factors, _, handle, _ = buffer.ht_dispatch(x, **layout, topk_idx=routes, topk_weights=weights)
        rank.kept += [got, named, factors, handle]
        rank.gpu.drain()
        for wrong, text in [
            (lambda: buffer.ht_dispatch(x), "get_dispatch_layout"),
            (lambda: buffer.ht_dispatch(x, handle, topk_idx=routes), "takes no topk_idx"),
            (lambda: buffer.ht_dispatch(x, **layout, topk_idx=routes), "or neither"),
            (lambda: buffer.ht_dispatch(x[:-1], **layout), "is_token_in_rank has the shape"),
            (lambda: buffer.ht_dispatch((x, factors), **layout), "elements of one byte"),
            (lambda: buffer.ht_dispatch(x, **layout, expert_alignment=0), "expert_alignment"),
            (lambda: buffer.ht_combine(got[:-1], handle), "x has the shape"),
            (lambda: buffer.ht_combine(got.float(), handle), "x is torch.float32"),
            (lambda: buffer.ht_combine(got, handle, bias=(x, x, x)), "at most two"),
            (lambda: buffer.low_latency_dispatch(x, routes, TOKENS), "low_latency_mode=True"),
            (lambda: buffer.low_latency_combine(x, routes, weights, handle), "low_latency_mode=True"),
            (lambda: buffer.get_dispatch_layout(routes, LOCAL + 1), "multiple of the 1 ranks|num_experts"),
            (lambda: buffer.connect_ranks([0], activate=False), "activate=False"),
        ]:
            if "multiple" in text and rank.ranks == 1:
                continue
            with pytest.raises(ValueError, match=text):
                wrong()
        with pytest.raises(_library.ExpertsError, match="open it with more"):
            wide = torch.zeros((len(x), 1 << 18), dtype=torch.bfloat16, device=rank.gpu.device)
            buffer.ht_dispatch(wide, **layout)
        rank.round(2)

    run(1, body)
    low = Buffer(rank=0, explicitly_destroy=True)
    low.update_memory_buffers(1, LOCAL, BYTES)
    with pytest.raises(ValueError, match="low_latency_mode=False"):
        low.ht_combine(None, (None,) * 4)
    low.destroy()


def test_configurations():
    assert Buffer.get_dispatch_config(8).num_sms == Buffer.num_sms
    before = Buffer.num_sms
    Buffer.set_num_sms(24)
    try:
        assert Buffer.get_combine_config(2).num_sms == 24
    finally:
        Buffer.set_num_sms(before)
    assert Config(20, 6, 256, 7, 256).num_max_rdma_chunked_recv_tokens == 259  # a multiple of 7
    for wrong in ((-1,), (20, 0), (20, 256, 256), (20, 6, 256, 0), (20, 6, 256, 6, 5)):
        with pytest.raises(ValueError, match="nixl_ep: num_"):
            Config(*wrong)
    config = Config(24, 8, 512, 16, 128)
    assert config.get_rdma_buffer_size_hint(14336, 8) == 0
    assert config.get_rdma_buffer_size_hint(14336, 16) == 2 * config.get_nvl_buffer_size_hint(14336, 16)
    assert config.get_nvl_buffer_size_hint(14336, 8) >= 2 * 8 * 12 * 512 * 14336


def test_arguments_are_those_of_nixl():
    wanted = {
        "get_dispatch_layout": "topk_idx num_experts previous_event async_finish allocate_on_comm_stream",
        "ht_dispatch": "x handle num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert topk_idx "
        "topk_weights expert_alignment config previous_event async_finish allocate_on_comm_stream",
        "ht_combine": "x handle topk_weights bias config previous_event async_finish allocate_on_comm_stream",
        "get_dispatch_config": "num_ranks",
        "get_combine_config": "num_ranks",
    }
    for name, arguments in wanted.items():
        found = [argument for argument in inspect.signature(getattr(Buffer, name)).parameters if argument != "self"]
        assert found == arguments.split(), name

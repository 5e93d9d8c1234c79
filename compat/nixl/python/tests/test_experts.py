"""nixl_ep.Buffer over GPUs made of host memory, or over a GPU where there is one: ranks are threads, which meet by a TCPStore.

torch gives a GPU's memory to nobody else before its stream has come that far. Host memory it frees at once, so tests keep every tensor
until the model's stream has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

import experts_etcd  # noqa: E402
import experts_model  # noqa: E402
import nixl_ep  # noqa: E402
import nixl_ep.buffer  # noqa: E402
from nixl_ep import Buffer, ExpertParallelismMissing, _library  # noqa: E402

ROOT = pathlib.Path(__file__).parents[4]
LOCAL, TOKENS, HIDDEN, TOPK = 4, 8, 512, 3


class RealGpu(nixl_ep._gpu.TorchGpu):
    """A GPU, with what the tests need of it: a stream of each thread's own."""

    _current = threading.local()

    def __init__(self) -> None:
        super().__init__()
        if not hasattr(self._current, "stream"):
            self._current.stream = torch.cuda.Stream(self.device)
            torch.cuda.set_stream(self._current.stream)

    def drain(self, _stream: int | None = None) -> None:
        torch.cuda.current_stream().synchronize()

    def record(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(capture_error_mode="relaxed")

    def end_record(self):
        self._graph.capture_end()
        return self._graph

    def replay(self, graph) -> None:
        graph.replay()


@pytest.fixture(params=["model", "gpu"])
def gpu(request, monkeypatch):
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("no GPU: torch sees none")
    if request.param == "model" and experts_model.find() is None:
        pytest.skip("no library of GPU models: build the tests of preset ci")
    made = experts_model.ModelGpu if request.param == "model" else RealGpu
    monkeypatch.setattr(nixl_ep.buffer, "_make_gpu", made)
    return made


class Rank:
    """A buffer of a thread, and its tokens."""

    def __init__(self, number: int, ranks: int, store, meeting: threading.Barrier, timeout_ms: int, a_host: int = 0) -> None:
        """store: a TCPStore, or arguments of Buffer by which ranks meet."""
        self.number, self.ranks, self.meeting = number, ranks, meeting
        how = store if isinstance(store, dict) else {"tcp_store_group": store}
        self.buffer = Buffer(rank=number, explicitly_destroy=True, timeout_ms=timeout_ms, **how)
        self.gpu = self.buffer._gpu
        if a_host:
            self.gpu.host = f"host {number // a_host}"
        size = self.gpu.table().bytes_for(ranks, LOCAL, TOKENS, HIDDEN)
        self.buffer.update_memory_buffers(ranks, LOCAL, size)

    def tokens(self, seed: int, rank: int | None = None, count: int | None = None):
        """x, topk_idx and topk_weights of a rank; on the processor."""
        generator = torch.Generator().manual_seed(1000 * seed + (self.number if rank is None else rank))
        if count is None:
            count = int(torch.randint(0, TOKENS + 1, (1,), generator=generator))
        x = torch.randn((count, HIDDEN), generator=generator).to(torch.bfloat16)
        routes = torch.stack([torch.randperm(self.ranks * LOCAL, generator=generator)[:TOPK] for _ in range(count)] or [torch.empty(TOPK)])
        routes = routes[:count].to(torch.int64).clone()
        routes[torch.rand(routes.shape, generator=generator) < 0.1] = -1
        return x, routes, torch.rand(routes.shape, generator=generator)

    def here(self, *tensors):
        return tuple(tensor.to(self.gpu.device) for tensor in tensors)

    def masks(self) -> list[int]:
        status = torch.full((self.ranks,), 7, dtype=torch.int32, device=self.gpu.device)
        self.buffer.query_mask_buffer(status)
        self.gpu.drain()
        return status.cpu().tolist()

    def results(self, packed, count):
        """The experts' results: for expert e, the token times e + 1."""
        made = torch.zeros_like(packed)
        for expert, tokens in enumerate(count.cpu().tolist()):
            made[expert, :tokens] = packed[expert, :tokens] * (self.number * LOCAL + expert + 1)
        return made

    def expected_tokens(self, seed: int, expert: int, there, count: int | None = None):
        """Of all ranks, in order, for an expert of this rank."""
        number = self.number * LOCAL + expert
        found = []
        for rank in there:
            x, routes, _ = self.tokens(seed, rank, count)
            found.append(x[(routes == number).any(dim=1)])
        return torch.cat(found)

    def expected_sums(self, seed: int, there, count: int | None = None):
        x, routes, weights = self.tokens(seed, count=count)
        sums = torch.zeros(x.shape)
        for k in range(TOPK):
            used = torch.tensor([route >= 0 and route // LOCAL in there for route in routes[:, k].tolist()], dtype=torch.bool)
            result = (x * (routes[:, k, None] + 1).to(torch.bfloat16)).to(torch.float32)
            sums = sums + torch.where(used[:, None], result * weights[:, k, None], 0.0)
        return sums.to(torch.bfloat16)

    def round(self, seed: int, there=None, hooks: bool = False, zero_copy: bool = False, asynchronous: bool = False) -> None:
        there = range(self.ranks) if there is None else there
        x, routes, weights = self.here(*self.tokens(seed))
        experts = self.ranks * LOCAL
        how = {"return_recv_hook": hooks, "async_finish": asynchronous}
        packed, count, handle, event, hook = self.buffer.low_latency_dispatch(x, routes, TOKENS, experts, use_fp8=False, **how)
        if hooks:
            hook()
        if asynchronous:
            event.event._event.wait()
        self.gpu.drain()
        assert packed.shape == (LOCAL, self.ranks * TOKENS, HIDDEN)
        for expert in range(LOCAL):
            wanted = self.expected_tokens(seed, expert, there)
            assert count[expert] == len(wanted)
            assert torch.equal(packed[expert, : len(wanted)].cpu(), wanted)
        results = self.results(packed, count)
        if zero_copy:
            own = self.buffer.get_next_combine_buffer(handle)
            assert own.shape == packed.shape
            own.copy_(results)
            results = torch.zeros_like(results)
        sums, event, hook = self.buffer.low_latency_combine(results, routes, weights, handle, zero_copy=zero_copy, **how)
        if hooks:
            hook()
        if asynchronous:
            event.event._event.wait()
        self.gpu.drain()
        assert torch.equal(sums.cpu(), self.expected_sums(seed, there))


def run_ranks(ranks: int, make, body) -> None:
    """The body as every rank, each in a thread. make: from a rank's number, its store and the barrier of all to the rank."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = threading.Barrier(ranks, timeout=120)
    failures = []

    def one(number: int) -> None:
        try:
            mine = torch.distributed.TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
            rank = make(number, mine, meeting)
            body(rank)
            rank.gpu.drain()
            meeting.wait()
            rank.buffer.destroy()
        except BaseException as failure:
            failures.append(failure)
            meeting.abort()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [failure for failure in failures if not isinstance(failure, threading.BrokenBarrierError)]
    if real or failures:
        raise (real or failures)[0]


def run(ranks: int, body, timeout_ms: int = 60_000, connects: bool = True, a_host: int = 0, meets=None) -> None:
    """a_host: how many ranks count as on one host; 0: all. meets: from a rank's number and store to the arguments of Buffer by which
    ranks meet."""

    def make(number: int, store, meeting: threading.Barrier) -> Rank:
        rank = Rank(number, ranks, meets(number, store) if meets else store, meeting, timeout_ms, a_host)
        if connects:
            rank.buffer.connect_ranks(list(range(ranks)))
        return rank

    run_ranks(ranks, make, body)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tokens_go_to_their_experts_and_come_back_summed(gpu, ranks):
    def body(rank):
        for seed in range(4):
            rank.round(seed)
        assert rank.masks() == [0] * ranks

    run(ranks, body)


@pytest.mark.parametrize("how", ["hooks", "zero_copy", "asynchronous"])
def test_phases_streams_and_results_without_a_copy(gpu, how):
    if how == "asynchronous" and gpu is RealGpu:
        pytest.skip("no GPU: events of the model only")

    def body(rank):
        for seed in range(3):
            rank.round(seed, **{how: True})

    run(2, body)


@pytest.mark.parametrize("scales", ["float", "rounded", "ue8m0"])
def test_fp8(gpu, scales):
    def body(rank):
        x, routes, _ = rank.here(*rank.tokens(3))
        how = {"round_scale": scales != "float", "use_ue8m0": scales == "ue8m0"}
        (packed, found), count, *kept = rank.buffer.dispatch(x, routes, TOKENS, rank.ranks * LOCAL, use_fp8=True, **how)
        rank.gpu.drain()
        assert packed.dtype == torch.float8_e4m3fn
        if scales == "ue8m0":
            assert found.dtype == torch.int32 and found.shape == (LOCAL, rank.ranks * TOKENS, HIDDEN // 512)
            exponents = found.cpu().reshape(-1).clone().view(torch.uint8).to(torch.int32).view(LOCAL, -1, HIDDEN // 128)
            found = (exponents << 23).view(torch.float32)
        assert found.shape == (LOCAL, rank.ranks * TOKENS, HIDDEN // 128)
        if scales != "ue8m0":
            assert found.stride(1) == 1  # column by column
        for expert in range(LOCAL):
            wanted = rank.expected_tokens(3, expert, range(rank.ranks)).to(torch.float32)
            assert count[expert] == len(wanted)
            factors = found[expert, : len(wanted)].cpu()
            groups = wanted.view(len(wanted), HIDDEN // 128, 128)
            inverse = groups.abs().amax(dim=2).clamp(min=1e-4) / 448
            if scales != "float":
                inverse = torch.exp2(torch.ceil(torch.log2(inverse)))
            assert torch.equal(factors, inverse)
            got = packed[expert, : len(wanted)].cpu().to(torch.float32).view(groups.shape) * factors[:, :, None]
            # A mantissa of three bits; below the smallest exponent, steps of 2^-9.
            assert ((got - groups).abs() <= groups.abs() / 16 + factors[:, :, None] * 2.0**-10).all()

    run(2, body)


def test_a_graph_is_replayed_with_other_tokens(gpu):
    def body(rank):
        x, routes, weights = rank.here(*rank.tokens(0, count=TOKENS))
        out = torch.empty((TOKENS, HIDDEN), dtype=torch.bfloat16, device=rank.gpu.device)
        rank.gpu.drain()
        rank.meeting.wait()
        rank.gpu.record()
        packed, count, handle, _, _ = rank.buffer.dispatch(x, routes, TOKENS, rank.ranks * LOCAL, use_fp8=False)
        rank.buffer.combine(packed, routes, weights, handle, out=out)
        graph = rank.gpu.end_record()
        rank.meeting.wait()
        for seed in range(1, 5):
            for there, new in zip((x, routes, weights), rank.tokens(seed, count=TOKENS)):
                there.copy_(new)
            rank.gpu.replay(graph)
            rank.gpu.drain()
            new, named, factors = rank.tokens(seed, count=TOKENS)
            sums = torch.zeros(new.shape)
            for k in range(TOPK):
                sums = sums + torch.where(named[:, k, None] >= 0, new.to(torch.float32) * factors[:, k, None], 0.0)
            assert torch.equal(out.cpu(), sums.to(torch.bfloat16))
        rank.meeting.wait()

    run(2, body)


def test_stats_are_added_to(gpu):
    def body(rank):
        device = rank.gpu.device
        stats = torch.full((LOCAL,), 10, dtype=torch.int32, device=device)
        waits = torch.zeros((rank.ranks,), dtype=torch.int64, device=device)
        x, routes, weights = rank.here(*rank.tokens(1))
        packed, count, handle, _, _ = rank.buffer.dispatch(x, routes, TOKENS, rank.ranks * LOCAL, stats, waits, use_fp8=False)
        rank.gpu.drain()
        assert torch.equal(stats, count + 10) and (waits > 0).all()
        before = waits.clone()
        kept = rank.buffer.combine(packed, routes, weights, handle, combine_wait_recv_cost_stats=waits)
        rank.gpu.drain()
        assert (waits > before).all()

    run(2, body)


def test_a_group_grows_and_shrinks(gpu):
    """Rank 2 joins two that are at work, and leaves them again. Without num_experts the shape follows the active ranks."""

    def body(rank):
        buffer = rank.buffer
        if rank.number != 2:
            buffer.connect_ranks([0, 1])
            for seed in range(3):
                rank.round(seed, there=[0, 1])
            assert rank.masks() == [0, 0, 1]
            assert buffer._rank_bound(None) == 2
        rank.meeting.wait()
        buffer.connect_ranks([0, 1, 2], activate=False)
        if rank.number != 2:
            rank.round(10, there=[0, 1])
        rank.meeting.wait()
        for other in {0, 1, 2} - {rank.number}:
            buffer.update_mask_buffer(other, False)
        assert buffer._rank_bound(None) == 3
        for seed in range(20, 23):
            rank.round(seed)
        buffer.barrier()
        rank.gpu.drain()
        rank.meeting.wait()
        if rank.number != 2:
            buffer.disconnect_ranks([2])
            assert buffer._rank_bound(None) == 2
            for seed in range(30, 33):
                rank.round(seed, there=[0, 1])
        rank.meeting.wait()

    run(3, body, connects=False)


def test_a_rank_that_does_not_come_is_masked_and_another_takes_its_place(gpu):
    def body(rank):
        rank.round(0)
        rank.meeting.wait()
        if rank.number == 0:
            rank.round(1, there=[0])
            assert rank.masks() == [0, 1]
            rank.buffer.disconnect_ranks([1])
            rank.meeting.wait()
            rank.buffer.connect_ranks([1])
        else:
            rank.meeting.wait()
            rank.buffer.destroy()
            rank.buffer = Rank(1, 2, rank.buffer.tcp_store_group, rank.meeting, 60_000).buffer
            rank.buffer.connect_ranks([0])
        for seed in range(2, 5):
            rank.round(seed)

    run(2, body, timeout_ms=5000)  # which the rounds before must keep as well


def test_an_empty_description_is_that_of_a_rank_that_leaves(gpu):
    class Leaving:
        """A store whose keys can go between wait() and get()."""

        def __init__(self, store) -> None:
            self._store = store
            self.empty = 2

        def __getattr__(self, name: str):
            return getattr(self._store, name)

        def get(self, key: str) -> bytes:
            self.empty -= 1
            return b"" if self.empty >= 0 else self._store.get(key)

    def body(rank):
        store = Leaving(rank.buffer.tcp_store_group)
        rank.buffer.set_tcp_store_group(store)
        rank.buffer.connect_ranks([0, 1])
        assert store.empty < 0
        rank.round(0)

    run(2, body, connects=False)


def test_results_of_small_magnitude_go_in_ten_bits(gpu):
    """The first quarter of a token is small. The rest is as without use_logfmt."""

    def body(rank):
        small = HIDDEN // 4
        x, routes, weights = rank.tokens(7, count=TOKENS)
        x[:, :small] /= 256
        x, routes, weights = rank.here(x, routes, weights)
        packed, count, handle, _, _ = rank.buffer.dispatch(x, routes, TOKENS, rank.ranks * LOCAL, use_fp8=False)
        rank.gpu.drain()
        results = rank.results(packed, count)
        plain, *kept = rank.buffer.combine(results, routes, weights, handle)
        cast, *kept = rank.buffer.combine(results, routes, weights, handle, use_logfmt=True)
        rank.gpu.drain()
        plain, cast = plain.cpu().to(torch.float32), cast.cpu().to(torch.float32)
        assert torch.equal(plain[:, small:], cast[:, small:])
        assert not torch.equal(plain[:, :small], cast[:, :small])
        # Of each result at most 1 %, and the sum is rounded once more.
        assert (plain - cast)[:, :small].abs().max() <= 0.02 * plain[:, :small].abs().max()

    run(2, body)


class Comm:
    """mpi4py's call that is used, among threads."""

    def __init__(self, meeting: threading.Barrier, all_given: dict, number: int) -> None:
        self._meeting, self._all, self._number = meeting, all_given, number

    def allgather(self, given) -> list:
        self._all[self._number] = given
        self._meeting.wait()
        everything = [self._all[number] for number in sorted(self._all)]
        self._meeting.wait()
        return everything


class ProcessGroup:
    """torch's call that is used."""

    def __init__(self, store) -> None:
        self._store = store

    def get_group_store(self):
        return torch.distributed.PrefixStore("group", self._store)


@pytest.mark.parametrize("a_host", [0, 1])
@pytest.mark.parametrize("by", ["store", "group", "comm", "etcd"])
def test_ranks_meet(gpu, by, a_host, tmp_path, monkeypatch):
    meeting, given = threading.Barrier(3, timeout=120), {}
    how = {
        "store": lambda _, store: {"tcp_store_group": torch.distributed.PrefixStore("experts", store)},
        "group": lambda _, store: {"group": ProcessGroup(store)},
        "comm": lambda number, _: {"comm": Comm(meeting, given, number)},
        "etcd": lambda *_: {},
    }[by]

    def body(rank):
        for seed in range(2):
            rank.round(seed)

    with experts_etcd.running(tmp_path) if by == "etcd" else contextlib.nullcontext() as address:
        if by == "etcd":
            if address is None:
                pytest.skip("there is no etcd here: install etcd-server")
            monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", f"127.0.0.1:1,{address}")  # the first one does not answer
            monkeypatch.setenv("NIXL_ETCD_NAMESPACE", "/of a test/")
        run(3, body, a_host=a_host, meets=how)
        if by == "etcd":
            assert experts_etcd.keys(address) == [], "ranks that end take their descriptions away"


@pytest.mark.parametrize("made", ["before torch 2.9", "in Python"])
def test_a_group_that_gives_no_store_has_one(monkeypatch, made):
    from nixl_ep import _meeting

    group = types.SimpleNamespace() if made == "before torch 2.9" else types.SimpleNamespace(get_group_store=lambda: None)
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_process_group_store", lambda one: store if one is group else None)
    assert _meeting._store_of(group) is store


def test_ranks_that_cannot_meet_are_told(gpu, monkeypatch):
    for endpoints, text in (("", "ranks can't meet"), ("127.0.0.1:1", "etcd .* refuses put: http://127.0.0.1:1")):
        monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", endpoints)
        buffer = Buffer(rank=0)
        buffer.update_memory_buffers(2, LOCAL, 4096)
        with pytest.raises((ValueError, ConnectionError), match=text):
            buffer.connect_ranks([1])


def listening() -> set[str]:
    """The TCP sockets at which this process listens."""
    mine = set()
    for descriptor in pathlib.Path("/proc/self/fd").iterdir():
        try:
            mine.add(os.readlink(descriptor))
        except OSError:
            continue
    lines = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
    return {fields[1] for fields in lines if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine}


@pytest.mark.parametrize("a_host", [0, 1])
def test_a_rank_listens_only_if_one_of_another_host_is_there(gpu, a_host):
    before = []

    def body(rank):
        rank.round(1)
        more = len(listening() - before[0])
        assert more == 0 if a_host == 0 else more >= 2, f"{more} sockets more"
        rank.meeting.wait()

    def meets(_, store):  # the store listens, too
        before.append(listening())
        return {"tcp_store_group": store}

    run(2, body, a_host=a_host, meets=meets)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_ranks_listen_to_other_hosts_only_if_some_are_there(gpu, monkeypatch, elsewhere):
    """Without the setting. Here all are on one host, and its name does not count; a rank of another network says so."""
    monkeypatch.delenv("TOWLINE_LISTEN", raising=False)
    network = os.stat("/proc/self/ns/net").st_ino
    before, addresses = [], []

    def body(rank):
        addresses.extend(address.split(":")[0] for address in listening() - before[0])
        rank.meeting.wait()

    def meets(_, store):
        before.append(listening())
        return {"tcp_store_group": store}

    if elsewhere:
        describe = _library.Member.describe
        other = (network + 1).to_bytes(8, "little")
        monkeypatch.setattr(_library.Member, "describe", lambda member: describe(member).replace(network.to_bytes(8, "little"), other, 1))
    run(2, body, a_host=1, meets=meets)
    assert len(addresses) >= 2 and set(addresses) <= ({"00000000", "0" * 32} if elsewhere else {"0100007F"}), addresses


def test_a_rank_that_listens_to_its_host_alone_refuses_one_of_another(gpu, monkeypatch):
    monkeypatch.delenv("TOWLINE_LISTEN", raising=False)
    network = os.stat("/proc/self/ns/net").st_ino
    buffers = [Buffer(rank=rank, explicitly_destroy=True) for rank in range(3)]
    for rank, buffer in enumerate(buffers):
        buffer._gpu.host = f"host {rank}"
        buffer.update_memory_buffers(3, LOCAL, 1 << 20)
    here, first, late = (buffer._member for buffer in buffers)
    with pytest.raises(_library.ExpertsError, match="not open to other hosts yet"):
        here.connect(1, first.describe(), 10**9)
    here.open_to_hosts()
    moved = late.describe().replace(network.to_bytes(8, "little"), (network + 1).to_bytes(8, "little"), 1)
    with pytest.raises(_library.ExpertsError, match="rank 2 is on another host, and rank 0 listens at 127.0.0.1 alone.*TOWLINE_LISTEN"):
        here.connect(2, moved, 10**9)
    for buffer in buffers:
        buffer.destroy()


@pytest.mark.parametrize("setting", ["127.0.0.2:7000", "127.0.0.2"])  # a port is left out where none is wanted
def test_ranks_listen_where_the_setting_says(gpu, monkeypatch, setting):
    monkeypatch.setenv("TOWLINE_LISTEN", setting)
    before, addresses = [], []

    def body(rank):
        rank.round(1)
        rank.meeting.wait()
        addresses.extend(address.split(":")[0] for address in listening() - before[0])
        rank.meeting.wait()

    def meets(_, store):
        before.append(listening())
        return {"tcp_store_group": store}

    run(2, body, a_host=1, meets=meets)
    assert len(addresses) >= 2 and set(addresses) == {"0200007F"}, addresses
    monkeypatch.setenv("TOWLINE_LISTEN", "none")
    buffer = Buffer(rank=0, explicitly_destroy=True)
    buffer.update_memory_buffers(2, LOCAL, 4096)
    with pytest.raises(RuntimeError, match=r"rank 0, but listen is 'none' \(environment TOWLINE_LISTEN\): name an address"):
        buffer._member.open_to_hosts()
    buffer.destroy()


def test_a_timeout_of_zero_waits_for_nobody(gpu):
    def body(rank):
        rank.meeting.wait()
        if rank.number == 0:
            began = time.monotonic()
            rank.round(1, there=[0])
            assert time.monotonic() - began < 5 and rank.masks() == [0, 1]
        rank.meeting.wait()

    run(2, body, timeout_ms=0)
    with pytest.raises(ValueError, match="give 0 or more"):
        Buffer(timeout_ms=-1)


def test_the_other_memory_and_the_runtime_are_there(gpu):
    buffer = Buffer(rank=0, explicitly_destroy=True)
    assert buffer.runtime is not None
    buffer.update_memory_buffers(1, LOCAL, 4096, num_nvl_bytes=1 << 12)
    own = buffer.get_local_buffer_tensor(torch.int32)
    assert own.shape == (1 << 10,) and own.device == buffer._gpu.device
    own[:] = 7
    assert (buffer.get_local_buffer_tensor(torch.int32, torch.Size([2, 3]), 8) == 7).all()
    assert buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True).data_ptr() != own.data_ptr()
    buffer.destroy()
    assert buffer.runtime is None


@pytest.mark.parametrize("ranks, a_host", [(2, 1), (4, 2)])
def test_ranks_of_two_hosts(gpu, ranks, a_host):
    def body(rank):
        for seed in range(4):
            rank.round(seed, hooks=seed == 1, zero_copy=seed == 2)
        rank.buffer.barrier()
        assert rank.masks() == [0] * ranks

    run(ranks, body, a_host=a_host)


def test_a_rank_of_another_host_is_replaced(gpu):
    def body(rank):
        rank.round(0)
        rank.meeting.wait()
        if rank.number == 1:
            store = rank.buffer.tcp_store_group
            rank.buffer.destroy()
            rank.meeting.wait()
            rank.buffer = Rank(1, 2, store, rank.meeting, 60_000, 1).buffer
        else:
            rank.buffer.disconnect_ranks([1])
            rank.meeting.wait()
        rank.buffer.connect_ranks([0, 1])
        for seed in range(1, 4):
            rank.round(seed)

    run(2, body, a_host=1)


def test_masks_follow_the_calls(gpu):
    def body(rank):
        if rank.number == 0:
            rank.buffer.update_mask_buffer(1, True)
            assert rank.masks() == [0, 1]
            rank.buffer.clean_mask_buffer()
            assert rank.masks() == [0, 0]
        rank.round(5)

    run(2, body)


def test_what_does_not_fit_is_refused(gpu):
    def body(rank):
        buffer = rank.buffer
        x, routes, weights = rank.here(*rank.tokens(1, count=4))
        packed, count, handle, _, hook = buffer.dispatch(x, routes, TOKENS, LOCAL, use_fp8=False)
        rank.gpu.drain()
        assert hook is None
        for wrong, text in [
            (lambda: buffer.dispatch(x.float(), routes, TOKENS), "x is torch.float32"),
            (lambda: buffer.dispatch(x, routes.int(), TOKENS), "topk_idx is torch.int32"),
            (lambda: buffer.dispatch(x, routes[:2], TOKENS), "shape"),
            (lambda: buffer.dispatch(x, routes, TOKENS, LOCAL + 1), "num_experts"),
            (lambda: buffer.dispatch(x, routes, TOKENS, use_ue8m0=True), "round_scale"),
            (lambda: buffer.dispatch(x, routes, TOKENS, async_finish=True, return_recv_hook=True), "not both"),
            (lambda: buffer.combine(packed[:, :4], routes, weights, handle), "contiguous|shape"),
            (lambda: buffer.connect_ranks([1]), "out of range"),
            (lambda: buffer.disconnect_ranks([0]), "not connected"),
            (lambda: buffer.get_local_buffer_tensor(torch.uint8, torch.Size([1])), "1 elements of 0"),
        ]:
            with pytest.raises(ValueError, match=text):
                wrong()
        with pytest.raises(_library.ExpertsError, match="open it with more"):
            buffer.dispatch(x, routes, 4 * TOKENS, use_fp8=False)
        with pytest.raises(_library.ExpertsError, match="can't mask itself"):
            buffer.update_mask_buffer(0, True)
        *kept, hook = buffer.dispatch(x, routes, TOKENS, use_fp8=False, return_recv_hook=True)
        with pytest.raises(_library.ExpertsError, match="hook first"):
            buffer.dispatch(x, routes, TOKENS, use_fp8=False)
        hook()
        with pytest.raises(_library.ExpertsError, match="once each"):
            hook()
        rank.gpu.drain()
        with pytest.raises(RuntimeError, match="called before"):
            buffer.update_memory_buffers(1, LOCAL, 4096)
        assert buffer.get_local_buffer_tensor(torch.bfloat16, torch.Size([3, 5]), 2, True).shape == (3, 5)

    run(1, body)


def test_what_is_not_here_refuses_by_name(gpu):
    with pytest.raises(ExpertParallelismMissing, match="moe-a2a-backend"):
        Buffer(disable_ll_nvlink=True)
    with pytest.raises(RuntimeError, match="update_memory_buffers first"):
        Buffer(rank=0).barrier()


def test_arguments_are_those_of_nixl():
    wanted = {
        "__init__": "disable_ll_nvlink explicitly_destroy rank low_latency_mode group comm tcp_store_group timeout_ms",
        "low_latency_dispatch": "x topk_idx num_max_dispatch_tokens_per_rank num_experts cumulative_local_expert_recv_stats "
        "dispatch_wait_recv_cost_stats use_fp8 round_scale use_ue8m0 async_finish return_recv_hook",
        "low_latency_combine": "x topk_idx topk_weights handle use_logfmt zero_copy async_finish return_recv_hook out "
        "combine_wait_recv_cost_stats",
        "update_memory_buffers": "num_ranks num_experts_per_rank num_rdma_bytes num_nvl_bytes",
        "connect_ranks": "remote_ranks activate",
        "disconnect_ranks": "remote_ranks",
        "update_mask_buffer": "rank_to_mask mask",
        "query_mask_buffer": "mask_status",
        "get_next_combine_buffer": "handle",
        "get_local_buffer_tensor": "dtype size offset use_rdma_buffer",
        "get_rdma_size_hint": "num_max_dispatch_tokens_per_rank hidden num_ranks num_experts",
    }
    for name, arguments in wanted.items():
        found = [argument for argument in inspect.signature(getattr(Buffer, name)).parameters if argument != "self"]
        assert found == arguments.split(), name


def test_structs_are_those_of_the_header():
    """By the snapshot of the C interface, which is compared with the headers elsewhere."""
    text = (ROOT / "tests/structure/abi.txt").read_text()
    for name, struct in (("options", _library.Options), ("call", _library.Call), ("batch", _library.Batch), ("table_v1", _library.Table)):
        size = re.search(rf"^towline_experts_{name}: (\d+) bytes$", text, re.MULTILINE)
        members = re.findall(rf"^  towline_experts_{name}\.(\w+) at (\d+), (\d+) bytes$", text, re.MULTILINE)
        assert int(size[1]) == ctypes.sizeof(struct)
        assert [(member, int(at), int(size)) for member, at, size in members] == [
            (field, getattr(struct, field).offset, getattr(struct, field).size) for field, *_ in struct._fields_
        ]


def test_the_wheel_has_the_library():
    """As installed, in a program of its own: its hint needs no GPU."""
    if not (pathlib.Path(nixl_ep.__file__).parents[1] / "nixl" / "plugins").exists():
        pytest.skip("nixl_ep is not installed: it is used from the sources")
    hints = (
        "from nixl_ep import Buffer\n"
        "print(Buffer.get_rdma_size_hint(128, 7168, 8, 256), Buffer.get_low_latency_buffer_size_hint(128, 7168, 8, 256))"
    )
    done = subprocess.run([sys.executable, "-c", hints], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    hint, same = map(int, done.stdout.split())
    assert hint > 8 * 32 * 128 * 7168 * 2
    assert hint == same


@pytest.mark.parametrize("queues, warns", [(None, True), ("1", True), ("many", True), ("32", False)])
def test_few_queues_are_warned_of(monkeypatch, queues, warns):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if queues is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        nixl_ep._gpu.warn_of_few_queues()
    assert [str(each.message).startswith(f"nixl_ep: this process has {queues or 8} queues") for each in found] == [True] * warns

"""NIXL's class Buffer: its memory, its ranks, and low-latency mode. Importing it needs no torch."""

from __future__ import annotations

import time

from . import _gpu, _library, _meeting
from ._missing import ExpertParallelismMissing
from .throughput import HighThroughput
from .utils import EventHandle, EventOverlap

__all__ = ["DEFAULT_TIMEOUT_MS", "Buffer"]

DEFAULT_TIMEOUT_MS = 30_000
_MEETING_SECONDS = 300.0  # for ranks that are to connect
_make_gpu = _gpu.TorchGpu  # tests put GPUs of host memory here


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(f"nixl_ep: {text}")


def _address(tensor) -> int | None:
    return None if tensor is None or tensor.numel() == 0 else tensor.data_ptr()


class Buffer(HighThroughput):
    """A rank's memory for experts' tokens, and the kernels that exchange them with the other ranks.

    Between hosts it has met a GPU that all ranks shared, and no NIC yet. With `low_latency_mode=False` it exchanges batches for prefill.
    `disable_ll_nvlink` raises ExpertParallelismMissing. Ranks are threads or processes. Differences from NIXL's: an expert's tokens lie
    in the order of ranks and of their tokens; waits are counted in nanoseconds; hooks are called in the order of their exchanges, and
    no third exchange begins before the first is received.
    """

    num_sms: int = 20

    def __init__(
        self,
        disable_ll_nvlink: bool = False,
        explicitly_destroy: bool = False,
        rank: int = 0,
        low_latency_mode: bool = True,
        group=None,
        comm=None,
        tcp_store_group=None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        """`rank` is this one's number. Ranks meet by `tcp_store_group`, a torch Store; without one by the store of `group`, a torch
        ProcessGroup; by `comm`, an mpi4py communicator whose ranks all call connect_ranks at the same time; or by etcd, if
        NIXL_ETCD_ENDPOINTS is set. A wait in a kernel ends after `timeout_ms`, and the rank that did not come is masked. 0: after a
        few looks, so that only ranks that came before take part."""
        if disable_ll_nvlink:
            raise ExpertParallelismMissing("Buffer(disable_ll_nvlink=True)")
        _require(group is None or comm is None, "give a group or a comm, not both")
        _require(timeout_ms >= 0, f"timeout_ms is {timeout_ms}: give 0 or more")
        self.rank = rank
        self.group_size = 0
        self.low_latency_mode = low_latency_mode
        self.timeout_ms = timeout_ms
        self.explicitly_destroy = explicitly_destroy
        self.group = group
        self.comm = comm
        self.tcp_store_group = tcp_store_group
        self.num_rdma_bytes = 0
        self.num_nvl_bytes = 0
        self._experts_per_rank = 0
        self._member: _library.Member | None = None
        self._gpu = _make_gpu()
        self._connected: set[int] = set()
        self._active: set[int] = set()
        self._changes = 0  # of masks and ranks: handles are of one of them
        self._meeting = None  # where this rank's description is
        self._own_memory = None  # of num_nvl_bytes
        self._destroyed = False

    # ---- Memory

    def update_memory_buffers(
        self, num_ranks: int, num_experts_per_rank: int, num_rdma_bytes: int, num_nvl_bytes: int = 0
    ) -> None:
        """Allocates the memory: for at most `num_ranks` ranks, of so many bytes (get_low_latency_buffer_size_hint). Once. In high-throughput mode
        it has the bytes of both kinds (Config's hints)."""
        if self._member is not None:
            raise RuntimeError("nixl_ep: update_memory_buffers was called before: make another Buffer")
        self._member = _library.Member(
            self._gpu.table(),
            self._gpu.index,
            self.rank,
            num_ranks,
            num_experts_per_rank,
            num_rdma_bytes if self.low_latency_mode else num_rdma_bytes + num_nvl_bytes,
            max(self.timeout_ms * 1_000_000, 1),
            self._gpu.functions(),
            self._gpu.host,
        )
        self.group_size = num_ranks
        self.num_rdma_bytes = num_rdma_bytes
        self.num_nvl_bytes = num_nvl_bytes
        self._experts_per_rank = num_experts_per_rank
        self._active = {self.rank}

    def destroy(self) -> None:
        """Frees everything. Other ranks that still use its memory keep that."""
        _require(self.explicitly_destroy, "destroy() is for buffers made with explicitly_destroy=True")
        self._close()
        self._destroyed = True

    @property
    def runtime(self) -> Buffer | None:
        """None once the buffer was destroyed. NIXL's is an object of its C++ library; programs only ask whether it is there."""
        return None if self._destroyed else self

    def _close(self) -> None:
        member, self._member = self._member, None
        if member is None:
            return
        try:
            if self._meeting is not None:
                self._meeting.withdraw(self.rank)
        except Exception:  # the store is gone: nobody looks there any more
            pass
        member.close()

    def __del__(self) -> None:
        if getattr(self, "_member", None) is not None and not self.explicitly_destroy:
            self._close()

    def _opened(self) -> _library.Member:
        if self._member is None:
            raise RuntimeError("nixl_ep: the buffer has no memory: call update_memory_buffers first")
        return self._member

    def _low_latency(self) -> _library.Member:
        _require(self.low_latency_mode, "low-latency calls need Buffer(low_latency_mode=True)")
        return self._opened()

    @staticmethod
    def get_low_latency_buffer_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """The bytes that update_memory_buffers needs for exchanges of at most this shape."""
        _require(num_ranks > 0 and num_experts > 0, f"{num_experts} experts of {num_ranks} ranks")
        local = -(-num_experts // num_ranks)
        return _library.load().bytes_for(num_ranks, local, num_max_dispatch_tokens_per_rank, hidden)

    @staticmethod
    def get_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        """The same, under its earlier name."""
        return Buffer.get_low_latency_buffer_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def get_local_buffer_tensor(self, dtype, size=None, offset: int = 0, use_rdma_buffer: bool = False):
        """The buffer's bytes as a tensor, from `offset` elements on. It ends with the buffer. With use_rdma_buffer=False: memory of
        num_nvl_bytes, which low-latency mode does not use; in high-throughput mode there is one memory for both."""
        shared = use_rdma_buffer or not self.low_latency_mode
        tensor = self._gpu.bytes_at(*self._opened().memory()) if shared else self._nvl_memory()
        tensor = tensor[: tensor.numel() // dtype.itemsize * dtype.itemsize].view(dtype)[offset:]
        if size is None:
            return tensor
        _require(tensor.numel() >= size.numel(), f"{size.numel()} elements of {tensor.numel()}")
        return tensor[: size.numel()].view(size)

    def _nvl_memory(self):
        import torch

        self._opened()
        if self._own_memory is None:
            self._own_memory = torch.zeros(self.num_nvl_bytes, dtype=torch.uint8, device=self._gpu.device)
        return self._own_memory

    # ---- Ranks

    def set_tcp_store_group(self, tcp_store_group) -> None:
        self.tcp_store_group = tcp_store_group

    def connect_ranks(self, remote_ranks: list[int], activate: bool = True) -> None:
        """Connects to ranks, which connect to this one, and waits for them. Those that are connected stay so. With activate=False new
        ones are masked until update_mask_buffer(rank, False); only in low-latency mode."""
        member = self._opened()
        _require(activate or self.low_latency_mode, "connect_ranks(activate=False) is for low-latency mode")
        for rank in remote_ranks:
            _require(0 <= rank < self.group_size, f"rank {rank} is out of range for a group of {self.group_size}")
        new = [rank for rank in dict.fromkeys(remote_ranks) if rank != self.rank and rank not in self._connected]
        if new:
            self._meet(member, new)
        if activate:
            for rank in dict.fromkeys(remote_ranks):
                if rank != self.rank:
                    self.update_mask_buffer(rank, False)

    def _meet(self, member: _library.Member, new: list[int]) -> None:
        """Connects to these. Ranks that can't map each other's memory first open themselves to other hosts, and publish how they are
        reached."""
        mode = "low_latency" if self.low_latency_mode else "high_throughput"
        meeting = self._meeting = _meeting.meeting_of(self.tcp_store_group, self.group, self.comm, mode)
        end = time.monotonic() + _MEETING_SECONDS
        failure: Exception | None = None  # told where the others are, too
        while True:
            meeting.publish(self.rank, member.describe())
            try:
                if failure is None:
                    new = [rank for rank in new if not self._connect(member, meeting, rank, end)]
                    if new and time.monotonic() > end:
                        raise TimeoutError(f"nixl_ep: ranks {new} of other hosts did not say in {_MEETING_SECONDS:.0f} s how they are reached")
            except Exception as error:
                failure = error
            if not meeting.anyone(bool(new), failure):
                return
            try:
                self._gpu.opens_to_hosts()
                member.open_to_hosts()
            except Exception as error:
                failure = error
            _meeting.pause()

    def _connect(self, member: _library.Member, meeting, rank: int, end: float) -> bool:
        """False: once more, after both are open to other hosts. A process that died leaves its description, until the one that takes
        its place has published its own; one that ends takes it away. It may have had another size or build. Where descriptions don't change,
        the rank is lost, and nothing is awaited."""
        gone = {"PEER_LOST", "STALE", "IO", "NOT_FOUND", "UNREACHABLE", "MISMATCH"} if meeting.changes else set()
        while True:
            left = end - time.monotonic()
            if description := meeting.fetch(rank, left):
                try:
                    member.connect(rank, description, max(1, int(left * 1e9)))
                    self._connected.add(rank)
                    return True
                except _library.ExpertsError as error:
                    if error.status == "AGAIN":
                        return False
                    if error.status not in gone or left <= 0:
                        raise
            elif left <= 0:
                raise TimeoutError(f"nixl_ep: rank {rank} has left, and no other took its place in {_MEETING_SECONDS:.0f} s")
            _meeting.pause()

    def disconnect_ranks(self, remote_ranks: list[int]) -> None:
        """Masks ranks and lets their memory go. Waits for this rank's exchanges."""
        for rank in remote_ranks:
            _require(rank in self._connected, f"rank {rank} is not connected to rank {self.rank}")
        for rank in remote_ranks:
            self._opened().disconnect(rank)
            self._changes += 1
            self._connected.discard(rank)
            self._active.discard(rank)

    def update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank, or unmasks one that is connected, in the order of the current stream."""
        self._command(_library.MASK if mask else _library.UNMASK, rank_to_mask)
        self._changes += 1
        if mask:
            self._active.discard(rank_to_mask)
        else:
            self._active.add(rank_to_mask)

    def query_mask_buffer(self, mask_status) -> None:
        """Writes 1 for each masked rank, else 0: int32, of as many ranks as there may be."""
        import torch

        self._check_tensor("mask_status", mask_status, torch.int32)
        _require(mask_status.numel() == self.group_size, f"mask_status has {mask_status.numel()} elements, not {self.group_size}")
        self._command(_library.QUERY, out=mask_status.data_ptr())

    def clean_mask_buffer(self) -> None:
        """Unmasks the ranks that are connected, and masks the others."""
        self._command(_library.CLEAN)
        self._changes += 1
        self._active = {self.rank} | self._connected

    def barrier(self) -> None:
        """Waits, in the current stream, for all ranks that are not masked. One that does not come is masked."""
        self._command(_library.BARRIER)

    def _command(self, op: int, peer: int = 0, out: int | None = None) -> None:
        _require(peer >= 0, f"there is no rank {peer}")
        self._opened().issue(_library.make_call(op, peer=peer, out=out), self._gpu.stream())

    # ---- Exchanges

    def _check_tensor(self, name: str, tensor, dtype, shape: tuple | None = None) -> None:
        _require(tensor.dtype == dtype, f"{name} is {tensor.dtype}, not {dtype}")
        _require(tensor.device == self._gpu.device, f"{name} is on {tensor.device}, the buffer on {self._gpu.device}")
        _require(tensor.is_contiguous(), f"{name} is not contiguous")
        _require(shape is None or tuple(tensor.shape) == shape, f"{name} has the shape {tuple(tensor.shape)}, not {shape}")

    def _rank_bound(self, num_experts: int | None) -> int:
        """How many ranks take part: those of so many experts, or up to the last that is active."""
        active = max(self._active) + 1
        if num_experts is None:
            return active
        ranks, rest = divmod(num_experts, self._experts_per_rank)
        _require(
            rest == 0 and active <= ranks <= self.group_size,
            f"num_experts is {num_experts}: with {self._experts_per_rank} a rank it is a multiple of that, for {active} to "
            f"{self.group_size} ranks",
        )
        return ranks

    def _issue(self, call: _library.Call, tensors: tuple, async_finish: bool, return_recv_hook: bool):
        """Returns the event and the hook."""
        member = self._opened()
        _require(not (async_finish and return_recv_hook), "give async_finish or return_recv_hook, not both")
        if return_recv_hook:
            stream = self._gpu.stream()
            call.phases = _library.SEND
            member.issue(call, stream)

            def hook(kept=tensors) -> None:
                call.phases = _library.RECEIVE
                member.issue(call, stream)

            return EventOverlap(None), hook
        call.phases = _library.SEND | _library.RECEIVE
        if async_finish:
            return EventOverlap(EventHandle(self._gpu.beside(lambda stream: member.issue(call, stream))), tensors), None
        member.issue(call, self._gpu.stream())
        return EventOverlap(None), None

    def low_latency_dispatch(
        self,
        x,
        topk_idx,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int | None = None,
        cumulative_local_expert_recv_stats=None,
        dispatch_wait_recv_cost_stats=None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ):
        """Sends tokens to their experts' ranks, and receives those for this rank's experts.

        x: bfloat16 [tokens, hidden]. topk_idx: int64 [tokens, topk], -1 for none. All ranks give the same
        num_max_dispatch_tokens_per_rank, hidden, num_experts (default: of the ranks up to the last active one) and format.

        Returns (recv_x, recv_count, handle, event, hook). recv_x: bfloat16 [local experts, places, hidden], where places is ranks *
        num_max_dispatch_tokens_per_rank, or with use_fp8 a pair: float8_e4m3fn of that shape, and scales: float32
        [local experts, places, hidden / 128], or with use_ue8m0 int32 [..., hidden / 512]. Scales lie column by column. recv_count: int32
        [local experts], how many of the places hold tokens. With return_recv_hook tokens are there once hook() was called. The two stats are
        added to: int32 [local experts], and int64 [ranks] in nanoseconds.
        """
        import torch

        self._low_latency()
        _require(x.dim() == 2 and topk_idx.dim() == 2, "x is [tokens, hidden], and topk_idx [tokens, topk]")
        self._check_tensor("x", x, torch.bfloat16)
        tokens, hidden = x.shape
        self._check_tensor("topk_idx", topk_idx, torch.int64, (tokens, topk_idx.shape[1]))
        _require(not use_ue8m0 or round_scale, "use_ue8m0 needs round_scale")
        local, ranks, device = self._experts_per_rank, self._rank_bound(num_experts), self._gpu.device
        places = ranks * num_max_dispatch_tokens_per_rank
        stats, waits = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        if stats is not None:
            self._check_tensor("cumulative_local_expert_recv_stats", stats, torch.int32, (local,))
        if waits is not None:
            self._check_tensor("dispatch_wait_recv_cost_stats", waits, torch.int64, (ranks,))
        packed = torch.empty((local, places, hidden), dtype=torch.float8_e4m3fn if use_fp8 else torch.bfloat16, device=device)
        scales = None
        if use_fp8:
            width, dtype = (hidden // 512, torch.int32) if use_ue8m0 else (hidden // 128, torch.float32)
            scales = torch.empty((local, width, places), dtype=dtype, device=device)
        source = torch.empty((local, places), dtype=torch.int32, device=device)
        ranges = torch.empty((local, ranks), dtype=torch.int64, device=device)
        count = torch.empty((local,), dtype=torch.int32, device=device)
        call = self._call(_library.DISPATCH, ranks, x, topk_idx, num_max_dispatch_tokens_per_rank, hidden, source, ranges, waits)
        if use_fp8:
            call.format = _library.FP8 | (_library.ROUND_SCALE if round_scale else 0) | (_library.UE8M0 if use_ue8m0 else 0)
        call.out = packed.data_ptr()
        call.scales = _address(scales)
        call.count = count.data_ptr()
        call.stats = _address(stats)
        tensors = (x, topk_idx, packed, scales, count, source, ranges, stats, waits)
        event, hook = self._issue(call, tensors, async_finish, return_recv_hook)
        handle = (source, ranges, num_max_dispatch_tokens_per_rank, hidden)
        return (packed, scales.transpose(1, 2)) if use_fp8 else packed, count, handle, event, hook

    def _call(self, op, ranks, x, topk_idx, max_tokens, hidden, source, ranges, waits) -> _library.Call:
        return _library.make_call(
            op,
            ranks=ranks,
            tokens=topk_idx.shape[0],
            max_tokens=max_tokens,
            hidden=hidden,
            topk=topk_idx.shape[1],
            x=_address(x),
            topk_idx=_address(topk_idx),
            src_info=source.data_ptr(),
            layout_range=ranges.data_ptr(),
            wait_ns=_address(waits),
        )

    def dispatch(self, *args, **kwargs):
        """low_latency_dispatch."""
        return self.low_latency_dispatch(*args, **kwargs)

    def low_latency_combine(
        self,
        x,
        topk_idx,
        topk_weights,
        handle: tuple,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out=None,
        combine_wait_recv_cost_stats=None,
    ):
        """Sends experts' results back, and sums those of this rank's tokens with their weights.

        x: bfloat16 of recv_x's shape; with zero_copy the results are in get_next_combine_buffer() instead. topk_idx as in the dispatch, whose
        handle this is; topk_weights: float32 of its shape. With use_logfmt, on all ranks, results of small magnitude go in 10 bits each.
        Ranks that are masked count as nothing. Returns (combined, event, hook): bfloat16 [tokens, hidden], which is `out` if that is
        given. The stats are int64 [ranks], added to, in nanoseconds.
        """
        import torch

        member = self._low_latency()
        source, ranges, max_tokens, hidden = handle
        local, ranks = self._experts_per_rank, ranges.shape[1]
        places = ranks * max_tokens
        _require(topk_idx.dim() == 2, "topk_idx is [tokens, topk]")
        tokens = topk_idx.shape[0]
        self._check_tensor("x", x, torch.bfloat16, (local, places, hidden))
        self._check_tensor("topk_idx", topk_idx, torch.int64)
        self._check_tensor("topk_weights", topk_weights, torch.float32, tuple(topk_idx.shape))
        self._check_tensor("the handle's first tensor", source, torch.int32, (local, places))
        self._check_tensor("the handle's second tensor", ranges, torch.int64, (local, ranks))
        waits = combine_wait_recv_cost_stats
        if waits is not None:
            self._check_tensor("combine_wait_recv_cost_stats", waits, torch.int64, (ranks,))
        if out is None:
            out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=self._gpu.device)
        self._check_tensor("out", out, torch.bfloat16, (tokens, hidden))
        call = self._call(_library.COMBINE, ranks, x, topk_idx, max_tokens, hidden, source, ranges, waits)
        if zero_copy:
            call.x = member.results(max_tokens, hidden)
        if use_logfmt:
            call.format = _library.LOGFMT
        call.topk_weights = _address(topk_weights)
        call.out = _address(out)
        tensors = (x, topk_idx, topk_weights, source, ranges, out, waits)
        event, hook = self._issue(call, tensors, async_finish, return_recv_hook)
        return out, event, hook

    def combine(self, *args, **kwargs):
        """low_latency_combine."""
        return self.low_latency_combine(*args, **kwargs)

    def get_next_combine_buffer(self, handle: tuple):
        """The buffer's own memory for the results of a combine with zero_copy, as a tensor of recv_x's shape. There is one: fill it after the
        combine before. It ends with the buffer."""
        import torch

        _, ranges, max_tokens, hidden = handle
        shape = (self._experts_per_rank, ranges.shape[1] * max_tokens, hidden)
        size = 2 * shape[0] * shape[1] * shape[2]
        return self._gpu.bytes_at(self._opened().results(max_tokens, hidden), size).view(torch.bfloat16).view(shape)

    # ---- Streams

    def get_comm_stream(self):
        """The stream of exchanges with async_finish."""
        return self._gpu.communication_stream()

    @staticmethod
    def capture() -> EventOverlap:
        """What the current stream holds now, as an event."""
        return EventOverlap(EventHandle())

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """How many multiprocessors exchanges of batches use where they are given no Config."""
        _require(new_num_sms % 2 == 0, f"the number of SMs must be even, not {new_num_sms}")
        Buffer.num_sms = new_num_sms

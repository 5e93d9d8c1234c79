"""NIXL's high-throughput mode, as a part of Buffer. Importing it needs no torch."""

from __future__ import annotations

from . import _library
from .config import Config
from .utils import EventHandle, EventOverlap

__all__ = ["HighThroughput"]

_RANKS_OF_A_HOST = 8  # as NIXL counts hosts in get_dispatch_layout


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(f"nixl_ep: {text}")


def _address(tensor) -> int | None:
    return None if tensor is None or tensor.numel() == 0 else tensor.data_ptr()


class HighThroughput:
    """Batches for prefill: each token crosses the link, or the network, once for each rank that has an expert of it.

    The calls are those of Buffer(low_latency_mode=False). Tokens come in the order of ranks and, of each rank, in
    its own. A combine sums in float32, biases first and then ranks in their order, and rounds once. With `async_finish` or a
    `previous_event` the work is on the communication stream, as are the tensors that it makes; `allocate_on_comm_stream` changes nothing.

    A rank that does not come within the timeout is named by an exception: of this call where the host waits for counts, else of the next one,
    and what it should have brought is NaN. The GPU stays usable. Once all ranks have called update_mask_buffer(rank, False) for those they
    missed, they go on.
    """

    # ---- Layout

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The configuration of a dispatch that is given none."""
        _require(num_ranks > 0, f"there are no {num_ranks} ranks")
        from .buffer import Buffer

        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The configuration of a combine that is given none."""
        return HighThroughput.get_dispatch_config(num_ranks)

    def get_dispatch_layout(
        self,
        topk_idx,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ):
        """Where tokens go. topk_idx: int64 [tokens, topk], -1 for none.

        Returns (num_tokens_per_rank, num_tokens_per_rdma_rank, num_tokens_per_expert, is_token_in_rank, event): int32 [ranks]; int32 [hosts],
        counted as 8 ranks each, or None for at most 8 ranks; int32 [experts]; bool [tokens, ranks].
        """
        import torch

        self._opened()
        ranks = self.group_size
        self._check_tensor("topk_idx", topk_idx, torch.int64)
        _require(topk_idx.dim() == 2, "topk_idx is [tokens, topk]")
        _require(
            num_experts > 0 and num_experts % ranks == 0,
            f"num_experts is {num_experts}: give a multiple of the {ranks} ranks",
        )

        def work(_stream: int):
            tokens = topk_idx.shape[0]
            there = (topk_idx >= 0) & (topk_idx < num_experts)
            expert = torch.where(there, topk_idx, num_experts)
            per_expert = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
            per_expert.scatter_add_(0, expert.flatten(), torch.ones_like(expert, dtype=torch.int32).flatten())
            in_rank = torch.zeros((tokens, ranks + 1), dtype=torch.bool, device=topk_idx.device)
            in_rank.scatter_(1, expert // (num_experts // ranks), True)
            in_rank = in_rank[:, :ranks].contiguous()
            per_rank = in_rank.sum(dim=0, dtype=torch.int32)
            per_host = None
            if ranks > _RANKS_OF_A_HOST and ranks % _RANKS_OF_A_HOST == 0:
                hosts = in_rank.view(tokens, ranks // _RANKS_OF_A_HOST, _RANKS_OF_A_HOST)
                per_host = hosts.any(dim=2).sum(dim=0, dtype=torch.int32)
            return per_rank, per_host, per_expert[:num_experts].contiguous(), in_rank

        made, event = self._on_stream(work, (topk_idx,), previous_event, async_finish)
        return *made, event

    # ---- Exchanges

    def _batch_member(self) -> _library.Member:
        member = self._opened()
        _require(not self.low_latency_mode, "high-throughput calls need Buffer(low_latency_mode=False)")
        return member

    def _on_stream(self, work, tensors, previous_event, async_finish: bool):
        """Does work(stream), which returns the tensors that it makes. On the current stream, unless a previous event or async_finish asks for the
        communication stream. Returns the tensors and the event."""
        if previous_event is None and not async_finish:
            return work(self._gpu.stream()), EventOverlap(None)
        after = getattr(previous_event, "event", None)
        made, event = self._gpu.make_beside(work, getattr(after, "_event", None), tensors)
        if not async_finish:
            self._gpu.wait(event)
            return made, EventOverlap(None)
        return made, EventOverlap(EventHandle(event), tuple(tensors))

    def _blocks(self, config: Config | None) -> int:
        return max(1, (config or Config(self.num_sms)).num_sms)

    def _check_in_rank(self, in_rank, tokens: int) -> None:
        import torch

        self._check_tensor("is_token_in_rank", in_rank, torch.bool, (tokens, self.group_size))

    def _dispatch_call(self, x, scales, in_rank, config: Config | None, **fields) -> _library.Batch:
        _require(x.dim() == 2, "x is [tokens, hidden]")
        self._check_tensor("x", x, x.dtype)
        tokens, hidden = x.shape
        self._check_in_rank(in_rank, tokens)
        call = _library.make_batch(
            _library.BATCH_DISPATCH,
            ranks=self.group_size,
            blocks=self._blocks(config),
            tokens=tokens,
            token_bytes=hidden * x.element_size(),
            x=_address(x),
            in_rank=_address(in_rank),
            **fields,
        )
        if scales is not None:
            _require(x.element_size() == 1, f"x with scales has elements of one byte, not {x.dtype}")
            _require(scales.dim() == 2 and scales.shape[0] == tokens, f"scales are [{tokens} tokens, scales], not {tuple(scales.shape)}")
            _require(scales.element_size() == 4, f"scales are float32 or int32, not {scales.dtype}")
            _require(scales.device == self._gpu.device, f"scales are on {scales.device}, the buffer on {self._gpu.device}")
            call.scales = scales.shape[1]
            call.x_scales = _address(scales)
            call.scale_token_stride, call.scale_stride = scales.stride()
        return call

    def _output(self, x, scales, rows: int, call: _library.Batch):
        import torch

        device = self._gpu.device
        out = torch.empty((rows, x.shape[1]), dtype=x.dtype, device=device)
        call.out = _address(out)
        if scales is None:
            return out
        out_scales = torch.empty((rows, scales.shape[1]), dtype=scales.dtype, device=device)
        call.out_scales = _address(out_scales)
        return out, out_scales

    def ht_dispatch(
        self,
        x,
        handle: tuple | None = None,
        num_tokens_per_rank=None,
        num_tokens_per_rdma_rank=None,
        is_token_in_rank=None,
        num_tokens_per_expert=None,
        topk_idx=None,
        topk_weights=None,
        expert_alignment: int = 1,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ):
        """Sends each token to the ranks that is_token_in_rank names for it, and receives those for this one.

        x: [tokens, hidden], of any type whose rows have a multiple of 16 bytes; or a pair with scales, float32 or int32 [tokens, scales]
        with any strides. num_tokens_per_expert: int32 [experts]. num_tokens_per_rank is not looked at, since is_token_in_rank says the same. All
        ranks call it, with the same hidden size, scales, routes and experts.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle, event). recv_x: as x, of as many
        rows as came. recv_topk_idx: this rank's experts from 0 on, -1 for others, whose weights are 0. The list has the tokens of each of
        this rank's experts, rounded up to expert_alignment. The host waits until all ranks have said how many tokens they have.

        With the handle of an earlier dispatch it goes to the same ranks again, without a wait on the host; then all that is returned but
        recv_x and the event is None.
        """
        x, scales = x if isinstance(x, tuple) else (x, None)
        if handle is not None:
            _require(topk_idx is None and topk_weights is None, "a dispatch with a handle takes no topk_idx and topk_weights")
            made, event = self._repeat(x, scales, handle, config, previous_event, async_finish)
            return made, None, None, None, None, event
        _require(
            is_token_in_rank is not None and num_tokens_per_expert is not None and num_tokens_per_rank is not None,
            "a dispatch without a handle needs num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert: get_dispatch_layout",
        )
        _require((topk_idx is None) == (topk_weights is None), "give topk_idx and topk_weights, or neither")
        return self._count_and_dispatch(
            x, scales, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights, expert_alignment, config, previous_event, async_finish
        )

    def _parts(self, handle: tuple | list):
        """A handle's tensors, and the most tokens of a rank. What a lost rank did not bring is missing in a handle for ever, and which rows these
        are the GPU alone knows."""
        _require(
            handle[0] == self._changes,
            "the handle is of a dispatch from before ranks were masked, unmasked or disconnected, and may miss rows: dispatch anew without it",
        )
        return handle[1:]

    def _repeat(self, x, scales, handle: tuple, config, previous_event, async_finish: bool):
        member = self._batch_member()
        prefix, source, in_rank, most = self._parts(handle)
        call = self._dispatch_call(
            x,
            scales,
            in_rank,
            config,
            phases=_library.SEND | _library.RECEIVE,
            max_tokens=most,
            received=source.shape[0],
            prefix=_address(prefix),
            source_tokens=_address(source),
        )

        def work(stream: int):
            out = self._output(x, scales, source.shape[0], call)
            member.batch(call, stream)
            return out

        return self._on_stream(work, (x, scales, prefix, source, in_rank), previous_event, async_finish)

    def _count_and_dispatch(
        self, x, scales, in_rank, per_expert, topk_idx, topk_weights, alignment: int, config, previous_event, async_finish: bool
    ):
        import torch

        member = self._batch_member()
        experts = per_expert.numel() // self.group_size
        self._check_tensor("num_tokens_per_expert", per_expert, torch.int32, (experts * self.group_size,))
        _require(alignment > 0, f"expert_alignment is {alignment}: give at least 1")
        counted = _library.int32_list(max(1, experts))
        call = self._dispatch_call(
            x,
            scales,
            in_rank,
            config,
            phases=_library.SEND,
            experts=experts,
            alignment=alignment,
            tokens_per_expert=_address(per_expert),
            received_per_expert=_library.address_of(counted),
        )
        if topk_idx is not None:
            self._check_tensor("topk_idx", topk_idx, torch.int64)
            _require(topk_idx.dim() == 2 and topk_idx.shape[0] == x.shape[0], f"topk_idx is [{x.shape[0]} tokens, topk]")
            self._check_tensor("topk_weights", topk_weights, torch.float32, tuple(topk_idx.shape))
            call.topk = topk_idx.shape[1]
            call.topk_idx, call.topk_weights = _address(topk_idx), _address(topk_weights)

        def work(stream: int):
            device = self._gpu.device
            prefix = torch.empty((self.group_size,), dtype=torch.int32, device=device)
            call.prefix = _address(prefix)
            member.batch(call, stream)
            rows = call.received
            out = self._output(x, scales, rows, call)
            source = torch.empty((rows,), dtype=torch.int32, device=device)
            call.source_tokens = _address(source)
            routes = weights = None
            if topk_idx is not None:
                routes = torch.empty((rows, call.topk), dtype=torch.int64, device=device)
                weights = torch.empty((rows, call.topk), dtype=torch.float32, device=device)
                call.out_topk_idx, call.out_topk_weights = _address(routes), _address(weights)
            call.phases = _library.RECEIVE
            member.batch(call, stream)
            return out, routes, weights, prefix, source

        inputs = (x, scales, in_rank, per_expert, topk_idx, topk_weights)
        (out, routes, weights, prefix, source), event = self._on_stream(work, inputs, previous_event, async_finish)
        handle = (self._changes, prefix, source, in_rank, call.max_tokens)
        return out, routes, weights, list(counted[:experts]), handle, event

    def ht_combine(
        self,
        x,
        handle: tuple | list,
        topk_weights=None,
        bias=None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ):
        """Sends rows back to their tokens' ranks, and sums those of this rank's tokens, without weights.

        x: bfloat16 of recv_x's shape. handle: of the dispatch. topk_weights: float32 of recv_topk_weights' shape, summed likewise. bias: one or
        two bfloat16 [tokens, hidden], added. Returns (combined_x, combined_topk_weights, event).
        """
        import torch

        member = self._batch_member()
        prefix, source, in_rank, most = self._parts(handle)
        tokens, rows = in_rank.shape[0], source.shape[0]
        _require(x.dim() == 2, "x is [received tokens, hidden]")
        hidden = x.shape[1]
        self._check_tensor("x", x, torch.bfloat16, (rows, hidden))
        self._check_in_rank(in_rank, tokens)
        biases = (bias,) if isinstance(bias, torch.Tensor) else tuple(bias or ())
        _require(len(biases) <= 2, f"a combine takes at most two biases, not {len(biases)}")
        for one in biases:
            if one is not None:
                self._check_tensor("bias", one, torch.bfloat16, (tokens, hidden))
        call = _library.make_batch(
            _library.BATCH_COMBINE,
            phases=_library.SEND | _library.RECEIVE,
            ranks=self.group_size,
            blocks=self._blocks(config),
            tokens=tokens,
            max_tokens=most,
            received=rows,
            token_bytes=2 * hidden,
            x=_address(x),
            in_rank=_address(in_rank),
            prefix=_address(prefix),
            source_tokens=_address(source),
        )
        for place, one in enumerate(biases):
            call.bias[place] = _address(one)
        if topk_weights is not None:
            _require(topk_weights.dim() == 2, "topk_weights is [received tokens, topk]")
            self._check_tensor("topk_weights", topk_weights, torch.float32, (rows, topk_weights.shape[1]))
            call.topk = topk_weights.shape[1]
            call.topk_weights = _address(topk_weights)

        def work(stream: int):
            device = self._gpu.device
            out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
            call.out = _address(out)
            sums = None
            if topk_weights is not None:
                sums = torch.empty((tokens, call.topk), dtype=torch.float32, device=device)
                call.out_topk_weights = _address(sums)
            member.batch(call, stream)
            return out, sums

        (out, sums), event = self._on_stream(
            work, (x, prefix, source, in_rank, topk_weights, *biases), previous_event, async_finish
        )
        return out, sums, event


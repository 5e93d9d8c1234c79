#!/usr/bin/env python3
"""vLLM's exchange of experts' tokens over nixl_ep, unmodified: its manager of the buffer (NixlEPAll2AllManager: making it, scaling up and
down, masks, cleaning) and its NixlEPPrepareAndFinalize (plain, by hooks, FP8 in blocks), as two ranks that a third one joins and leaves.

Put in place: GPUs of host memory with models of the kernels, vLLM's platform for processors, its configuration, and its groups for data
and tensor parallelism. The experts are products. All else is vLLM's and torch's own.

Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import contextlib
import sys
import types

import experts_support as support

LOCAL, TOKENS, HIDDEN, TOPK, MOST_RANKS = 2, 8, 2048, 2, 3
EXPERTS = LOCAL * MOST_RANKS
STAND_INS = ("xgrammar", "xgrammar.structural_tag", "xgrammar.openai_tool_call_schema", "llguidance")


class StandIn(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def load():
    """vLLM's modules, with what they ask of the machine answered."""
    for name in STAND_INS:
        try:
            __import__(name)
        except ModuleNotFoundError:
            sys.modules[name] = StandIn(name)
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    import vllm.distributed.parallel_state as parallel
    from vllm.distributed.device_communicators import all2all
    from vllm.model_executor.layers.fused_moe.prepare_finalize import nixl_ep as prepare

    group = types.SimpleNamespace(rank_in_group=0, world_size=1)
    parallel.get_dp_group = parallel.get_tp_group = lambda: group
    return all2all, prepare


class Rank:
    def __init__(self, number: int) -> None:
        support.put_model_in_place()
        self.number = number
        self.all2all, self.prepare = load()
        self.seed = 0
        self.manager = None

    def take_group(self, group, ranks: int) -> None:
        """vLLM makes its managers anew when a group changes; the buffer stays."""
        settings = types.SimpleNamespace(enable_elastic_ep=True, elastic_ep_max_dp_size=MOST_RANKS, data_parallel_size=ranks)
        self.all2all.get_current_vllm_config = lambda: types.SimpleNamespace(parallel_config=settings)
        if self.manager is not None:
            self.manager.destroy()
        self.manager = self.all2all.NixlEPAll2AllManager(group)
        assert self.manager.world_size == ranks and not self.manager.internode

    def handle(self):
        asked = {"max_num_tokens_per_dp_rank": TOKENS, "token_hidden_size": HIDDEN, "num_local_experts": LOCAL}
        return self.manager.get_handle(asked)

    def round(self, there, fp8: bool = False, hooks: bool = False) -> None:
        """Prepare, experts, finalize, compared with what the ranks in `there` have."""
        import torch
        from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG, FusedMoEQuantConfig
        from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceDelegate

        self.seed += 1
        every = [support.tokens(self.seed, rank, TOKENS, HIDDEN, EXPERTS, TOPK) for rank in there]
        x, ids, weights = every[list(there).index(self.number)]
        config = FusedMoEQuantConfig.make(torch.float8_e4m3fn, block_shape=[128, 128]) if fp8 else FUSED_MOE_UNQUANTIZED_CONFIG
        both = self.prepare.NixlEPPrepareAndFinalize(
            self.handle(), TOKENS, self.manager.max_num_ep_ranks, LOCAL * self.manager.max_num_ep_ranks, use_fp8_dispatch=fp8
        )
        given = (x, weights, ids, EXPERTS, None, False, config)
        if hooks:
            hook, receive = both.prepare_async(*given)
            hook()
            packed, scales, meta, _, _ = receive()
        else:
            packed, scales, meta, _, _ = both.prepare(*given)
        results = torch.zeros(packed.shape, dtype=torch.bfloat16)
        for local, count in enumerate(meta.expert_num_tokens.tolist()):
            expert = self.number * LOCAL + local
            wanted = support.expected_tokens(expert, every)
            assert count == len(wanted), (count, len(wanted))
            if fp8:
                wide = packed[local, :count].to(torch.float32).view(count, -1, 128) * scales[local, :count, :, None]
                assert torch.allclose(wide.view(count, HIDDEN), wanted.to(torch.float32), rtol=0.07, atol=0.02)
            else:
                assert torch.equal(packed[local, :count], wanted)
            results[local, :count] = support.result_of(wanted, expert)
        out = torch.empty_like(x)
        done = (out, results, weights, ids, False, TopKWeightAndReduceDelegate())
        if hooks:
            hook, receive = both.finalize_async(*done)
            hook()
            receive()
        else:
            both.finalize(*done)
        experts = {rank * LOCAL + local for rank in there for local in range(LOCAL)}
        assert torch.equal(out, support.expected_sums(x, ids, weights, experts))

    def masks(self) -> list[int]:
        return self.manager.query_active_mask().tolist()


def be_rank(number: int) -> None:
    import torch.distributed as dist

    two, three, again = dist.new_group([0, 1]), dist.new_group([0, 1, 2]), dist.new_group([0, 1])
    rank = Rank(number)

    @contextlib.contextmanager
    def part(name: str):
        yield
        dist.barrier()
        if number == 0:
            print(f"vllm, experts: {name}: passed", flush=True)

    with part("two ranks, plain, by hooks and FP8"):
        if number != 2:
            rank.take_group(two, 2)
            rank.round([0, 1])
            rank.round([0, 1], hooks=True)
            rank.round([0, 1], fp8=True)
            rank.round([0, 1], fp8=True, hooks=True)
            assert rank.masks() == [0, 0] and not rank.manager.query_fault()
    with part("peers masked for a while"):
        if number != 2:
            with rank.manager.mask_remote_ranks():
                rank.round([number])
                assert rank.masks()[1 - number] == 1 and rank.manager.query_fault()
                dist.barrier(two)
            rank.round([0, 1])
    with part("buffers cleaned"):
        if number != 2:
            dist.barrier(two)
            rank.manager.clean_buffers()
            dist.barrier(two)
            rank.round([0, 1])
    with part("a third rank joins"):
        rank.seed = 100  # the same for all
        rank.take_group(three, 3)
        if number != 2:
            rank.manager.stage_ep_size()
            rank.round([0, 1])
        rank.seed = 200
        if number != 2:
            rank.manager.commit_ep_size()
        for _ in range(3):
            rank.round([0, 1, 2])
        assert rank.masks() == [0, 0, 0]
    with part("it leaves"):
        if number != 2:
            rank.take_group(again, 2)
            rank.manager.commit_ep_size()
            rank.round([0, 1])
            assert rank.masks() == [0, 0]


if __name__ == "__main__":
    support.require_model()
    sys.exit(0 if support.run_ranks(be_rank, MOST_RANKS) else 1)

#!/usr/bin/env python3
"""SGLang's dispatcher of experts' tokens over nixl_ep, unmodified (NixlEPDispatcher, and NixlEPBuffer, which makes and scales the buffer):
plain and FP8, by events, by hooks, and as two batches overlap, as two ranks that a third one joins.

Put in place: GPUs of host memory with models of the kernels, and the modules around the dispatcher: SGLang's context, its state of elastic
ranks, its recorder of experts, its modes and the types of its outputs. The experts are products.

Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import importlib.metadata
import sys
import types

import experts_support as support

LOCAL, TOKENS, HIDDEN, TOPK, MOST_RANKS = 2, 8, 512, 2, 3
EXPERTS = LOCAL * MOST_RANKS
DISPATCHERS = "sglang.srt.layers.moe.token_dispatcher"


def stand_in(name: str, folder=None, **members) -> types.ModuleType:
    """A module with these members; of a folder: a package of which that is imported what is asked for."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)] if folder else []
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


class Mode:
    """Low latency alone, as NixlEPDispatcher has no other."""

    LOW_LATENCY = NORMAL = None

    def enable_normal(self) -> bool:
        return False

    def enable_low_latency(self) -> bool:
        return True

    def resolve(self, _in_batch: bool) -> Mode:
        return self


Mode.LOW_LATENCY, Mode.NORMAL = Mode(), Mode()


def load(store, offset: int, active):
    """SGLang's module. offset: the number of this process's first rank; active: a tensor of the ranks that take part."""
    srt = importlib.metadata.distribution("sglang").locate_file("sglang/srt")
    stand_in("sglang", srt.parent)
    stand_in("sglang.srt", srt)
    for name in ("layers", "layers.moe", "layers.moe.token_dispatcher"):
        stand_in(f"sglang.srt.{name}", srt / name.replace(".", "/"))
    state = types.SimpleNamespace(active_ranks=active)
    elastic = types.SimpleNamespace(
        instance=lambda: state, get_ep_join_rank_offset=lambda: offset, get_data_plane_ep_size=lambda: MOST_RANKS
    )
    recorder = types.SimpleNamespace(on_deepep_dispatch_low_latency=lambda _counts: None)
    fields = "hidden_states hidden_states_scale topk_ids topk_weights masked_m expected_m"
    stand_in("sglang.srt.distributed")
    stand_in("sglang.srt.distributed.utils", get_global_tcp_store=lambda: store)
    stand_in("sglang.srt.elastic_ep")
    stand_in("sglang.srt.elastic_ep.elastic_ep", ElasticEPStateManager=elastic)
    stand_in("sglang.srt.eplb")
    stand_in("sglang.srt.eplb.expert_distribution", get_global_expert_distribution_recorder=lambda: recorder)
    gemm = stand_in("sglang.srt.layers.deep_gemm_wrapper", ENABLE_JIT_DEEPGEMM=False, DEEPGEMM_BLACKWELL=False)
    sys.modules["sglang.srt.layers"].deep_gemm_wrapper = gemm
    stand_in("sglang.srt.layers.dp_attention", get_is_extend_in_batch=lambda: False)
    stand_in(
        f"{DISPATCHERS}.deepep",
        DeepEPLLDispatchOutput=collections.namedtuple("DeepEPLLDispatchOutput", fields),
        DeepEPLLCombineInput=collections.namedtuple("DeepEPLLCombineInput", "hidden_states topk_ids topk_weights"),
    )
    stand_in("sglang.srt.layers.moe.topk", TopKOutput=object)
    stand_in("sglang.srt.layers.moe.utils", DeepEPMode=Mode)
    resources = types.SimpleNamespace(buffers={})
    parallel = types.SimpleNamespace(max_ep_size=MOST_RANKS)
    stand_in("sglang.srt.runtime_context", get_parallel=lambda: parallel, get_resources=lambda: resources)
    module = importlib.import_module(f"{DISPATCHERS}.nixl")
    module.envs.SGLANG_NIXL_EP_NUM_MAX_DISPATCH_TOKENS_PER_RANK.set(TOKENS)
    return module


class Batch:
    """A batch on its way through a dispatcher, step by step."""

    def __init__(self, rank: Rank, hooks: bool, there) -> None:
        rank.seed += 1
        self.rank, self.there = rank, there
        self.every = [support.tokens(rank.seed, each, TOKENS, HIDDEN, EXPERTS, TOPK) for each in there]
        self.x, self.ids, self.weights = self.every[list(there).index(rank.number)]
        self.dispatcher = rank.module.NixlEPDispatcher(
            group=rank.group,
            router_topk=TOPK,
            num_experts=EXPERTS,
            num_local_experts=LOCAL,
            hidden_size=HIDDEN,
            deepep_mode=Mode.LOW_LATENCY,
            return_recv_hook=hooks,
        )

    def send(self) -> None:
        self.dispatcher.dispatch_a(self.x, types.SimpleNamespace(topk_weights=self.weights, topk_ids=self.ids.int()))

    def compute(self) -> None:
        import torch

        got = self.dispatcher.dispatch_b()
        results = torch.zeros(got.hidden_states.shape, dtype=torch.bfloat16)
        for local, count in enumerate(got.masked_m.tolist()):
            expert = self.rank.number * LOCAL + local
            wanted = support.expected_tokens(expert, self.every)
            assert count == len(wanted), (count, len(wanted))
            if got.hidden_states_scale is not None:
                scales = got.hidden_states_scale[local, :count, :, None]
                wide = got.hidden_states[local, :count].to(torch.float32).view(count, -1, 128) * scales
                assert torch.allclose(wide.view(count, HIDDEN), wanted.to(torch.float32), rtol=0.07, atol=0.02)
            else:
                assert torch.equal(got.hidden_states[local, :count], wanted)
            results[local, :count] = support.result_of(wanted, expert)
        self.dispatcher.combine_a((results, got.topk_ids, got.topk_weights))

    def finish(self) -> None:
        import torch

        sums = self.dispatcher.combine_b()
        experts = {each * LOCAL + local for each in self.there for local in range(LOCAL)}
        assert torch.equal(sums, support.expected_sums(self.x, self.ids, self.weights, experts))


class Rank:
    def __init__(self, number: int, group, store, offset: int) -> None:
        import torch

        support.put_model_in_place()
        self.number, self.group, self.seed = number, group, 0
        self.active = torch.ones(MOST_RANKS, dtype=torch.int32)
        self.module = load(store, offset, self.active)

    def round(self, there, hooks: bool = False) -> None:
        batch = Batch(self, hooks, there)
        batch.send()
        batch.compute()
        batch.finish()

    def overlap(self, there) -> None:
        """Two batches, as SGLang's overlap orders their steps."""
        first, second = Batch(self, True, there), Batch(self, True, there)
        first.send()
        second.send()
        first.compute()
        second.compute()
        first.finish()
        second.finish()

    def set_plain(self, plain: bool) -> None:
        self.module.envs.SGLANG_NIXL_EP_BF16_DISPATCH.set(plain)


def be_rank(number: int) -> None:
    import torch.distributed as dist

    two, one = dist.new_group([0, 1]), dist.new_group([2])
    store = dist.distributed_c10d._get_default_store()
    rank = Rank(number, one if number == 2 else two, store, 2 if number == 2 else 0)

    @contextlib.contextmanager
    def part(name: str):
        yield
        dist.barrier()
        if number == 0:
            print(f"sglang, experts: {name}: passed", flush=True)

    for plain in (True, False):
        with part("two ranks, " + ("plain" if plain else "FP8")):
            if number != 2:
                rank.set_plain(plain)
                rank.round([0, 1])
                rank.round([0, 1], hooks=True)
                rank.overlap([0, 1])
                assert rank.active.tolist() == [1, 1, 0]
    rank.set_plain(True)
    rank.seed = 100  # the same for all
    with part("a third rank joins"):
        if number != 2:
            rank.module.NixlEPBuffer.on_scale(2, 3)
        for _ in range(3):
            rank.round([0, 1, 2])
        assert rank.active.tolist() == [1, 1, 1]


if __name__ == "__main__":
    support.require_model()
    sys.exit(0 if support.run_ranks(be_rank, MOST_RANKS) else 1)

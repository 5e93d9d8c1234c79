#!/usr/bin/env python3
"""vLLM's NixlConnector worker, whole and unmodified, on tensors of the host: a prefill worker in one process, a decode
worker in another. Both register a KV cache; vLLM's own listener and handshake carry the metadata (ZMQ); the decode
worker reads blocks of requests, and the prefill worker learns from their notifications that they were read.

Put in place: what needs vLLM's compiled parts or a GPU. The configuration is a stand-in, no model is loaded, the
attention backend is a name, ranks are those of one process, and the platform is vLLM's own for processors. Of modules
that are not installed, those that only parse outputs are stand-ins too. NIXL is whatever `nixl` is here.

Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import sys
import threading
import time
import types
from unittest.mock import MagicMock

TIMEOUT = 300.0  # importing vLLM alone takes a minute on a busy machine
BLOCKS, BLOCK_TOKENS, HEADS, HEAD_SIZE = 64, 16, 2, 32
LAYERS = [f"model.layers.{n}.attn" for n in range(3)]
STAND_INS = ("xgrammar", "xgrammar.structural_tag", "xgrammar.openai_tool_call_schema", "llguidance")


class StandIn(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Attention:
    """The name of an attention backend, and the block size it takes."""

    @staticmethod
    def get_name() -> str:
        return "STAND_IN"


def import_vllm():
    """vLLM's worker modules, with what they ask of the machine answered for a host without GPUs."""
    for name in STAND_INS:
        try:
            __import__(name)
        except ModuleNotFoundError:
            sys.modules[name] = StandIn(name)
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker, pull_worker, push_worker

    base_worker.get_current_attn_backends = lambda config, layers=None: [Attention]
    base_worker.get_current_attn_backends_and_specs = lambda config, cache, fallback: (fallback, [None] * len(fallback))
    base_worker.select_common_block_size = lambda size, backends, specs=None: size
    base_worker.get_tensor_model_parallel_rank = lambda: 0
    base_worker.get_tensor_model_parallel_world_size = lambda: 1
    base_worker.current_platform.discover_numa_topology = lambda: []  # leave the threads' processors alone
    return {"pull": pull_worker.NixlPullConnectorWorker, "push": push_worker.NixlPushConnectorWorker}


def configuration(role: str):
    from vllm.config import KVTransferConfig
    from vllm.v1.kv_cache_interface import KVCacheLayout

    config = MagicMock()
    config.kv_transfer_config = KVTransferConfig(kv_connector="NixlConnector", kv_role=role, kv_buffer_device="cpu")
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    config.speculative_config = None
    for name in ("prefill_context", "decode_context", "pipeline", "tensor"):
        parallel = f"{name}_parallel_size"
        setattr(config.parallel_config, parallel, 1)
    model = config.model_config
    model.model, model.dtype, model.use_mla, model.enable_sleep_mode = "none", "float32", False, False
    model.get_total_num_kv_heads.return_value = HEADS
    model.get_head_size.return_value = HEAD_SIZE
    model.get_total_num_hidden_layers.return_value = len(LAYERS)
    config.cache_config.cache_dtype, config.cache_config.block_size = "auto", BLOCK_TOKENS
    config.cache_config.get_resolved_kv_cache_layout.return_value = list(KVCacheLayout)[0]
    return config


def make_worker(engine: str, role: str, first: int, kind: str = "pull"):
    """A worker whose blocks hold their number, layer by layer, from `first` on."""
    import torch

    workers = import_vllm()
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.float32
    )
    cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(LAYERS, spec)])
    worker = workers[kind](configuration(role), engine, cache)
    caches = {}
    for number, layer in enumerate(LAYERS):
        blocks = torch.arange(BLOCKS, dtype=torch.float32) + first + 1000 * number
        caches[layer] = blocks.reshape(-1, 1, 1, 1).repeat(1, BLOCK_TOKENS, HEADS, 2 * HEAD_SIZE)
    worker.register_kv_caches(caches)
    return worker, caches


def numbers(cache) -> list[int]:
    flat = cache.reshape(BLOCKS, -1)
    assert bool((flat == flat[:, :1]).all()), "a block is of several parts"
    return [int(value) for value in flat[:, 0]]


def metadata():
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata

    return NixlConnectorMetadata()


def expect_blocks(caches, mine, theirs) -> None:
    """The decode side has the prefill side's blocks `theirs` in its own `mine`, in every layer, and no other."""
    for number, layer in enumerate(LAYERS):
        found = numbers(caches[layer])
        assert [found[block] for block in mine] == [5000 + 1000 * number + block for block in theirs], layer
        assert found[1] == 1000 * number + 1, "a block nobody asked for was written"


def until(look, what: str):
    end = time.monotonic() + TIMEOUT
    while not (found := look()):
        assert time.monotonic() < end, f"no {what}"
    return found


@contextlib.contextmanager
def answering_handshakes(worker):
    """vLLM's own listener for this worker; gives its port."""
    import msgspec
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import NixlBaseConnectorScheduler

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ready, stop = threading.Event(), threading.Event()
    payload = {(0, 0): msgspec.msgpack.encode(worker.xfer_handshake_metadata)}
    listener = threading.Thread(
        target=NixlBaseConnectorScheduler._nixl_handshake_listener, args=(payload, ready, stop, "127.0.0.1", port)
    )
    listener.start()
    assert ready.wait(TIMEOUT)
    try:
        yield port
    finally:
        stop.set()
        listener.join()


def serve(pipe) -> None:
    """The prefill side: answers handshakes, keeps requests' blocks until they were read."""
    worker, _ = make_worker("prefill", "kv_producer", 5000)
    with answering_handshakes(worker) as port:
        pipe.send(port)
        while (request := pipe.recv()) is not None:
            step = metadata()
            step.reqs_in_batch = {request}
            step.reqs_to_send = {request: time.perf_counter() + TIMEOUT}
            worker.start_load_kv(step)
            pipe.send("kept")
            until(lambda: request in worker.get_finished()[0], f"notification that {request} was read")
            pipe.send("read")
    worker.shutdown()
    del worker  # before the interpreter ends: its finaliser needs vLLM's modules
    pipe.send("ended")


def read(worker, port: int, request: str, mine: list[int], theirs: list[int]) -> None:
    """One request of the decode side, to its end."""
    step = metadata()
    step.add_new_req_to_recv(
        request,
        (mine,),
        {
            "remote_block_ids": (theirs,),
            "remote_engine_id": "prefill",
            "remote_request_id": request,
            "remote_host": "127.0.0.1",
            "remote_port": port,
        },
        awaiting_kvs=True,
    )
    worker.start_load_kv(step)

    def finished():
        done = request in worker.get_finished()[1]
        worker.start_load_kv(metadata())  # begins what waited for the handshake
        return done

    until(finished, f"end of {request}")
    assert not worker.get_block_ids_with_load_errors()


def main() -> int:
    spawn = multiprocessing.get_context("spawn")
    pipe, far_end = spawn.Pipe()
    far = spawn.Process(target=serve, args=(far_end,), daemon=True)
    far.start()

    def hear():
        assert pipe.poll(TIMEOUT), "the prefill side does not answer"
        return pipe.recv()

    worker, caches = make_worker("decode", "kv_consumer", 0)
    port = hear()
    requests = {"first": ([3, 4, 60], [7, 8, 0]), "second": (list(range(20, 50)), list(range(10, 40)))}
    for request, (mine, theirs) in requests.items():
        pipe.send(request)
        assert hear() == "kept"
        read(worker, port, request, mine, theirs)
        assert hear() == "read"
        expect_blocks(caches, mine, theirs)
        print(f"passed: vLLM, NixlConnector's worker, {request} request of {len(mine)} blocks x {len(LAYERS)} layers")
    stats = worker.get_kv_connector_stats()
    assert stats is not None and not stats.is_empty(), "no telemetry of the transfers"
    print("passed: vLLM, NixlConnector's telemetry of transfers")
    pipe.send(None)
    assert hear() == "ended"
    worker.shutdown()
    del worker
    far.join(TIMEOUT)
    return 0 if far.exitcode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

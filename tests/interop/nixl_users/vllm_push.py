#!/usr/bin/env python3
"""vLLM's NixlPushConnector worker, whole and unmodified, on tensors of the host: the decode worker registers a request with
the prefill worker by a notification, and the prefill worker writes the request's blocks into it once it has them. Each
side connects to the other by vLLM's own handshake. What is a stand-in is told in vllm_worker.py.

Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

from vllm_worker import LAYERS, TIMEOUT, answering_handshakes, expect_blocks, make_worker, metadata, until


def serve(pipe) -> None:
    """The prefill side: its requests' blocks go to who has registered for them, or will."""
    worker, _ = make_worker("prefill", "kv_producer", 5000, "push")
    with answering_handshakes(worker) as port:
        pipe.send(port)
        while (order := pipe.recv()) is not None:
            request, blocks = order
            step = metadata()
            step.reqs_in_batch = {request}
            step.reqs_to_send = {request: time.perf_counter() + TIMEOUT}
            step.push_finished_blocks = {request: (blocks,)}
            worker.start_load_kv(step)
            pipe.send("computed")
            until(lambda: request in worker.get_finished()[0], f"end of the WRITE of {request}")
            pipe.send("written")
    worker.shutdown()
    del worker  # before the interpreter ends: its finaliser needs vLLM's modules
    pipe.send("ended")


def register(worker, request: str, mine: list[int], theirs: list[int], port: int, prefill_port: int) -> None:
    """Tells the prefill side where the request's blocks are to go."""
    prefill = {"remote_engine_id": "prefill", "remote_host": "127.0.0.1", "remote_port": prefill_port}
    step = metadata()
    step.add_new_req_to_recv(
        request, (mine,), {**prefill, "remote_block_ids": (theirs,), "remote_request_id": request}, awaiting_kvs=True
    )
    step.push_registrations[request] = {
        **prefill,
        "request_id": request,
        "local_block_ids": (mine,),
        "remote_tp_size": 1,
        "decode_engine_id": "decode",
        "decode_host": "127.0.0.1",
        "decode_port": port,
        "decode_tp_size": 1,
    }
    worker.start_load_kv(step)


def main() -> int:
    spawn = multiprocessing.get_context("spawn")
    pipe, far_end = spawn.Pipe()
    far = spawn.Process(target=serve, args=(far_end,), daemon=True)
    far.start()

    def hear(what: str):
        assert pipe.poll(TIMEOUT), f"the prefill side does not say {what}"
        assert (said := pipe.recv()) == what, said

    worker, caches = make_worker("decode", "kv_consumer", 0, "push")
    assert pipe.poll(TIMEOUT), "the prefill side tells no port"
    prefill_port = pipe.recv()
    requests = {"computed first": ([3, 4, 60], [7, 8, 0]), "registered first": (list(range(20, 50)), list(range(10, 40)))}
    with answering_handshakes(worker) as port:
        for request, (mine, theirs) in requests.items():
            if request == "computed first":
                pipe.send((request, theirs))
                hear("computed")
            register(worker, request, mine, theirs, port, prefill_port)
            if request == "registered first":
                pipe.send((request, theirs))
                hear("computed")
            until(lambda: request in worker.get_finished()[1], f"notification that {request} was written")
            hear("written")
            assert not worker.get_block_ids_with_load_errors()
            expect_blocks(caches, mine, theirs)
            print(f"passed: vLLM, NixlPushConnector's worker, {request}: {len(mine)} blocks x {len(LAYERS)} layers")
        pipe.send(None)
        hear("ended")
    worker.shutdown()
    del worker
    far.join(TIMEOUT)
    return 0 if far.exitcode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""vLLM's own NIXL code, unmodified, on memory of the host: the data planes of its KV offloading between peers (WRITE)
and of its encoder cache (READ with a notification), between two processes; and what its connector asks of NIXL when it
starts. NIXL is whatever `nixl` is here.

Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

import numpy as np

TIMEOUT = 300.0  # importing vLLM alone takes a minute on a busy machine
BLOCK, BLOCKS = 16 << 10, 128


def blocks(first: int) -> np.ndarray:
    """Blocks that hold their number, from `first` on."""
    return np.repeat(np.arange(first, first + BLOCKS, dtype=np.uint32)[:, None], BLOCK // 4, axis=1)


def numbers(array: np.ndarray) -> list[int]:
    assert (array == array[:, :1]).all(), "a block is of several parts"
    return array[:, 0].tolist()


def wait_for(look):
    end = time.monotonic() + TIMEOUT
    while not (found := look()):
        assert time.monotonic() < end, "nothing came"
    return found


def offload_transport(name: str, array: np.ndarray):
    from vllm.v1.kv_offload.tiering.p2p.data.nixl import NixlTransport

    return NixlTransport(name, memoryview(array.view(np.uint8)))


def cache_transport(name: str, array: np.ndarray):
    from vllm.distributed.ec_transfer.ec_connector.cpu.data.nixl import NixlDataTransport

    return NixlDataTransport(name, array.ctypes.data, BLOCKS, BLOCK, array.nbytes)


def serve(pipe) -> None:
    """The other side: is written to, and read from; tells what it has."""
    array = blocks(1000)
    offload, cache = offload_transport("far-offload", array), cache_transport("far-cache", array)
    pipe.send((offload.get_agent_metadata(), offload.base_addr, cache.get_agent_metadata(), cache.get_mem_descriptor()))
    while (verb := pipe.recv()) != "end":
        if verb == "numbers":
            pipe.send(numbers(array))
        elif verb == "notifications":
            pipe.send(wait_for(cache.get_new_notifs))
    cache.deregister()
    offload.close()
    pipe.send("ended")


class Far:
    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, far_end = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(far_end,), daemon=True)
        self.process.start()
        self.offload, self.address, self.cache, self.descriptor = self.hear()

    def hear(self):
        assert self.pipe.poll(TIMEOUT), "the other process does not answer"
        return self.pipe.recv()

    def ask(self, verb: str):
        self.pipe.send(verb)
        return self.hear()

    def end(self) -> None:
        assert self.ask("end") == "ended"
        self.process.join(TIMEOUT)
        assert self.process.exitcode == 0


def kv_offloading(far: Far) -> None:
    transport = offload_transport("near-offload", blocks(0))
    assert transport.available
    transport.add_remote_peer("far", far.offload, far.address, BLOCKS, BLOCK)
    begun = transport.write_blocks("far", [1, 2, 100], [7, 8, 0])
    assert begun is not None
    result = wait_for(lambda: (r := transport.poll("far")).done and r)
    assert list(result.done) == [begun] and not result.failed and result.peer_fault is None, result
    assert far.ask("numbers")[:10] == [100, *range(1001, 1007), 1, 2, 1009]
    transport.remove_remote_peer("far")
    assert transport.write_blocks("far", [0], [0]) is None
    transport.close()


def encoder_cache(far: Far) -> None:
    array = blocks(0)
    transport = cache_transport("near-cache", array)
    name = transport.add_remote_peer(far.cache, far.descriptor)
    handle = transport.post_read([0, 5], name, [20, 127], b"request-17")
    wait_for(lambda: transport.check_xfer_state(handle) == "DONE")
    transport.release_xfer_handle(handle)
    assert numbers(array)[:7] == [1020, 1, 2, 3, 4, 1127, 6]
    assert far.ask("notifications") == {"near-cache": [b"request-17"]}
    transport.remove_remote_peer(name)
    transport.deregister()


def connector(_far: Far) -> None:
    from vllm.distributed import nixl_utils

    assert nixl_utils.is_nixl_available()
    nixl_utils.check_nixl_version("1.5.0")  # what the connector demands
    assert nixl_utils.NixlWrapper.__name__ == "nixl_agent" and nixl_utils.nixlXferTelemetry is not None


def main() -> int:
    failed, far = 0, Far()
    for part in (connector, kv_offloading, encoder_cache):
        try:
            part(far)
            print(f"passed: vLLM, {part.__name__}")
        except Exception as error:
            import traceback

            traceback.print_exc()
            print(f"FAILED: vLLM, {part.__name__}: {error!r}")
            failed = 1
    far.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())

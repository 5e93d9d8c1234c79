#!/usr/bin/env python3
"""LMCache's own NIXL code, unmodified, on tensors of the host: its transfer channel between two processes and its
storage agent on files. NIXL is whatever `nixl` is here.

Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import tempfile
import time

import torch

TIMEOUT = 300.0  # importing torch and LMCache alone takes a minute on a busy machine
PAGE, PAGES = 64 << 10, 64


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pages(first: int) -> torch.Tensor:
    """Pages that hold their number, from `first` on."""
    numbers = torch.arange(first, first + PAGES, dtype=torch.int32)
    return numbers[:, None].expand(PAGES, PAGE // 4).contiguous()


def channel(tensor: torch.Tensor, port: int):
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from lmcache.v1.distributed.transfer_channel.impl.nixl_impl import NixlTransferChannelContext

    memory = L1MemoryDesc(ptr=tensor.data_ptr(), size=tensor.nbytes, align_bytes=PAGE)
    url = f"127.0.0.1:{port}"
    return NixlTransferChannelContext(memory, url, url)


def serve(pipe, port: int) -> None:
    """Owns pages, and does nothing about them."""
    tensor = pages(1000)
    context = channel(tensor, port)
    pipe.send("ready")
    pipe.recv()
    context.close()
    pipe.send("ended")


def transfer_channel() -> None:
    port = free_port()
    spawn = multiprocessing.get_context("spawn")
    pipe, far_end = spawn.Pipe()
    process = spawn.Process(target=serve, args=(far_end, port), daemon=True)
    process.start()
    assert pipe.poll(TIMEOUT) and pipe.recv() == "ready"
    tensor = torch.zeros((PAGES, PAGE // 4), dtype=torch.int32)
    context = channel(tensor, free_port())
    client = context.get_transfer_channel_client(f"127.0.0.1:{port}")
    here = context.get_transfer_channel_address([(3 * PAGE, 2 * PAGE), (0, PAGE)])
    there = context.get_transfer_channel_address([(10 * PAGE, 2 * PAGE), (63 * PAGE, PAGE)])
    task = client.submit_read(here, there)
    end = time.monotonic() + TIMEOUT
    while not (result := client.query_read_status(task)).finished:
        assert time.monotonic() < end, "the read did not end"
    assert result.succeeded_mask == [True, True], result
    assert tensor[:, 0].tolist()[:6] == [1063, 0, 0, 1010, 1011, 0], tensor[:6, 0]
    assert (tensor == tensor[:, :1]).all()
    context.close()
    pipe.send("end")
    assert pipe.poll(TIMEOUT) and pipe.recv() == "ended"
    process.join(TIMEOUT)
    assert process.exitcode == 0


def storage_agent() -> None:
    from lmcache.v1.storage_backend.nixl_storage_backend import NixlFilePool, NixlStaticStorageAgent
    from lmcache.v1.storage_backend.path_sharder import PathSharder

    class Buffer:
        """The attributes that the agent reads from its allocator."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self.buffer_ptr, self.buffer_size, self.align_bytes = tensor.data_ptr(), tensor.nbytes, PAGE

    tensor = pages(0)
    with tempfile.TemporaryDirectory() as folder:
        sharder = PathSharder(raw_csv=folder, strategy="by_gpu", dst_device="cuda:0", create_dirs=True)
        pool = NixlFilePool(8, sharder, False)
        agent = NixlStaticStorageAgent(Buffer(tensor), pool, "cpu", "POSIX", {}, True)
        handle = agent.get_mem_to_storage_handle([1, 2, 3], [5, 6, 7])
        agent.post_blocking(handle)
        agent.release_handle(handle)
        handle = agent.get_storage_to_mem_handle([40, 41, 42], [7, 6, 5])
        agent.post_blocking(handle)
        agent.release_handle(handle)
        assert tensor[:, 0].tolist()[39:44] == [39, 3, 2, 1, 43], tensor[39:44, 0]
        assert (tensor == tensor[:, :1]).all()
        agent.close()
        pool.close()


def main() -> int:
    failed = 0
    for part in (transfer_channel, storage_agent):
        try:
            part()
            print(f"passed: LMCache, {part.__name__}")
        except Exception as error:
            import traceback

            traceback.print_exc()
            print(f"FAILED: LMCache, {part.__name__}: {error!r}")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Dynamo's own NIXL code, unmodified, on tensors of the host: nixl_connect between two processes, and the transfer of
embeddings by WRITE and by READ. NIXL is whatever `nixl` is here.

Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys

import torch

TIMEOUT = 300.0  # importing torch and Dynamo alone takes a minute on a busy machine
NUMBERS = 1 << 20
PIECES = 5
BUFFER = 64 << 20


def numbers() -> torch.Tensor:
    return torch.arange(NUMBERS, dtype=torch.int32)


async def offer(pipe) -> None:
    """Memory that the other side reads, writes, and reads in pieces."""
    from dynamo import nixl_connect

    connector = nixl_connect.Connector()
    with await connector.create_readable(nixl_connect.Descriptor(numbers())) as operation:
        pipe.send(operation.metadata().model_dump_json())
        await operation.wait_for_completion()
    written = torch.zeros(NUMBERS, dtype=torch.int32)
    with await connector.create_writable(nixl_connect.Descriptor(written)) as operation:
        pipe.send(operation.metadata(hex_encode=True).model_dump_json())
        await operation.wait_for_completion()
    pipe.send(bool((written == numbers()).all()))
    pieces = [nixl_connect.Descriptor(torch.full((1000,), i, dtype=torch.int64)) for i in range(PIECES)]
    with await connector.create_readable(pieces) as operation:
        pipe.send(operation.metadata().model_dump_json())
        await operation.wait_for_completion()
    pipe.send("ended")


def serve(pipe) -> None:
    asyncio.run(offer(pipe))


async def connect() -> None:
    from dynamo import nixl_connect

    spawn = multiprocessing.get_context("spawn")
    pipe, far_end = spawn.Pipe()
    process = spawn.Process(target=serve, args=(far_end,), daemon=True)
    process.start()

    def hear():
        assert pipe.poll(TIMEOUT), "the other process does not answer"
        return pipe.recv()

    connector = nixl_connect.Connector()
    read = torch.zeros(NUMBERS, dtype=torch.int32)
    metadata = nixl_connect.RdmaMetadata.model_validate_json(hear())
    with await connector.begin_read(metadata, nixl_connect.Descriptor(read)) as operation:
        await operation.wait_for_completion()
    assert (read == numbers()).all()
    metadata = nixl_connect.RdmaMetadata.model_validate_json(hear())
    with await connector.begin_write(nixl_connect.Descriptor(numbers()), metadata) as operation:
        await operation.wait_for_completion()
    assert hear() is True
    pieces = [torch.zeros(1000, dtype=torch.int64) for _ in range(PIECES)]
    metadata = nixl_connect.RdmaMetadata.model_validate_json(hear())
    with await connector.begin_read(metadata, [nixl_connect.Descriptor(piece) for piece in pieces]) as operation:
        await operation.wait_for_completion()
    assert all((piece == i).all() for i, piece in enumerate(pieces))
    assert hear() == "ended"
    process.join(TIMEOUT)
    assert process.exitcode == 0


async def embeddings(sender, receiver) -> None:
    tensors = [torch.randn(64, 1024) for _ in range(8)]
    sent = [await sender.send_embeddings(tensor, stage_embeddings=True) for tensor in tensors]
    received = await asyncio.gather(*(receiver.receive_embeddings(request) for request, _ in sent))
    for tensor, (number, copy) in zip(tensors, received):
        assert torch.equal(tensor, copy)
        receiver.release_tensor(number)
    for _, done in sent:
        await asyncio.wait_for(done, TIMEOUT)


async def embeddings_by_write() -> None:
    from dynamo.common.multimodal import embedding_transfer as transfer

    await embeddings(transfer.NixlWriteEmbeddingSender(), transfer.NixlWriteEmbeddingReceiver(BUFFER))


async def embeddings_by_read() -> None:
    from dynamo.common.multimodal import embedding_transfer as transfer

    await embeddings(transfer.NixlReadEmbeddingSender(), transfer.NixlReadEmbeddingReceiver(embedding_hidden_size=1024))


def main() -> int:
    failed = 0
    for part in (connect, embeddings_by_write, embeddings_by_read):
        try:
            asyncio.run(part())
            print(f"dynamo {part.__name__}: passed", flush=True)
        except Exception as error:
            failed = 1
            print(f"dynamo {part.__name__}: {error!r}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""A server writes random pages into a client's memory, as pplx-garden's programs do. Run it without arguments.

The client sends a request with the descriptor of its memory; the server writes the pages, with an immediate that the
client counts, and answers with a message.
"""

from __future__ import annotations

import mmap
import multiprocessing as mp
import pickle
import queue
import random
import threading

from pplx_garden.fabric_lib import DomainAddress, MemoryRegionDescriptor, PageIndices, TransferEngine

PAGE_BYTES, STRIDE, OFFSET, PAGES, IMM = 3000, 4096, 1024, 64, 0xDEADBEEF
ARENA_BYTES = STRIDE * (PAGES + 4)
LIMIT = 30


def fail(why: str) -> None:
    raise RuntimeError(why)


def build_engine() -> TransferEngine:
    group = TransferEngine.detect_topology()[0]
    builder = TransferEngine.builder()
    builder.add_gpu_domains(group.cuda_device, group.domains, group.cpus[0], group.cpus[1])
    return builder.build()


def address_of(arena: mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(arena))


def content(seed: int) -> bytes:
    return random.Random(seed).randbytes(ARENA_BYTES)


def server(address_to_client: mp.Queue) -> None:
    engine = build_engine()
    requests: queue.Queue[bytes] = queue.Queue()
    engine.submit_bouncing_recvs(1, 1 << 20, requests.put, fail)
    address_to_client.put(engine.main_address)
    client, descriptor, seed, indices = pickle.loads(requests.get(timeout=LIMIT))
    assert isinstance(client, DomainAddress) and isinstance(descriptor, MemoryRegionDescriptor)
    arena = mmap.mmap(-1, ARENA_BYTES)
    arena[:] = content(seed)
    handle, _ = engine.register_memory(address_of(arena), ARENA_BYTES, "cpu")
    written, answered = threading.Event(), threading.Event()
    pages = PageIndices(indices)
    engine.submit_paged_writes(PAGE_BYTES, handle, pages, STRIDE, OFFSET, descriptor, pages, STRIDE, OFFSET, IMM, written.set, fail)
    assert written.wait(LIMIT)
    engine.submit_write(handle, 0, 100, None, descriptor, 0, lambda: None, fail)
    engine.submit_imm(7, descriptor, lambda: None, fail)
    engine.submit_send(client, pickle.dumps("done"), answered.set, fail)
    assert answered.wait(LIMIT)
    assert requests.get(timeout=LIMIT) == b"bye"
    engine.stop()


def client(server_address: DomainAddress) -> None:
    engine = build_engine()
    arena = mmap.mmap(-1, ARENA_BYTES)
    _, descriptor = engine.register_memory(address_of(arena), ARENA_BYTES, "cpu")
    answers: queue.Queue[bytes] = queue.Queue()
    others: queue.Queue[int] = queue.Queue()
    counted = threading.Event()
    engine.submit_bouncing_recvs(1, 1 << 20, answers.put, fail)
    engine.set_imm_callback(others.put)
    assert engine.set_imm_count_expected(IMM, PAGES, counted.set) is None
    seed, indices = 42, random.Random(1).sample(range(PAGES + 3), PAGES)
    sent = threading.Event()
    engine.submit_send(server_address, pickle.dumps((engine.main_address, descriptor, seed, indices)), sent.set, fail)
    assert sent.wait(LIMIT) and counted.wait(LIMIT)
    assert others.get(timeout=LIMIT) == 7
    assert pickle.loads(answers.get(timeout=LIMIT)) == "done"
    expected = content(seed)
    for index in range(PAGES + 3):
        begin = OFFSET + index * STRIDE
        page = arena[begin : begin + PAGE_BYTES]
        assert page == (expected[begin : begin + PAGE_BYTES] if index in indices else bytes(PAGE_BYTES)), index
    engine.submit_send(server_address, b"bye", lambda: sent.clear(), fail)
    while sent.is_set():
        threading.Event().wait(0.001)
    engine.stop()
    print(f"{PAGES} pages of {PAGE_BYTES} bytes, all as they should be")


def main() -> None:
    context = mp.get_context("spawn")
    addresses = context.Queue()
    child = context.Process(target=server, args=(addresses,))
    child.start()
    client(addresses.get(timeout=LIMIT))
    child.join(LIMIT)
    if child.exitcode != 0:
        raise SystemExit(f"the server ended with {child.exitcode}")


if __name__ == "__main__":
    main()

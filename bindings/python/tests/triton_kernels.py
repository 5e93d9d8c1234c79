"""Kernels of the tests of Triton. Imported where Triton is."""

import triton
import triton.language as tl

from towline import triton_device as device
from towline.triton_device import all_reduce

__all__ = ["all_reduce", "exchange", "type_of"]


def type_of(name: str):
    return getattr(tl, name)


@triton.jit
def exchange(
    table, got, came, count, turn, looks, rank: tl.constexpr, size: tl.constexpr, slots: tl.constexpr, block: tl.constexpr
):
    offsets = tl.arange(0, block)
    mask = offsets < count
    after = (rank + 1) % size
    before = (rank + size - 1) % size
    device.put(table, after, offsets, offsets + 1000 * rank + turn, mask, tl.float32)
    device.signal(table, rank, size, slots, after, 0)
    tl.store(came, device.wait(table, rank, size, slots, before, 0, turn + 1, looks).to(tl.int32))
    theirs = device.get(table, rank, offsets, mask, tl.float32)
    device.put(table, rank, offsets, theirs + 1, mask, tl.float32)
    device.signal(table, rank, size, slots, before, 1)
    tl.store(came + 1, device.wait(table, rank, size, slots, after, 1, turn + 1, looks).to(tl.int32))
    tl.store(got + offsets, device.get(table, after, offsets, mask, tl.float32), mask=mask)
    device.barrier(table, rank, size, slots, 2, turn + 1, looks)

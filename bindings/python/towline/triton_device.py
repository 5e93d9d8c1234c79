"""Functions for kernels written in Triton on the memory of all ranks of a host: put, get, signal, wait, barrier, reduce.

    table = gpu_memory.Table(window)                # window: of a communicator of the backend "gpu"
    pointers = table.pointers()                     # an int64 tensor on the GPU, for the kernels

    @triton.jit
    def kernel(table, rank: tl.constexpr, size: tl.constexpr, slots: tl.constexpr, ...):
        device.put(table, peer, offsets, values, mask)              # into that rank's memory
        device.signal(table, rank, size, slots, peer, slot)         # which sees it after it waited for this
        came = device.wait(table, rank, size, slots, peer, slot, count, looks)

Every program (block) of a kernel calls these with all its threads; programs that run at the same time use different slots.
Programs that wait for other ranks' must all be on the GPU at the same time. `table.slots - 1` slots are the application's; each
counts from 0 and never goes back. A wait ends after so many `looks`, about a microsecond each, and then is False.
`all_reduce` at the end is an example; docs/gpu-collectives.md has the rules.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["all_reduce", "barrier", "get", "memory", "put", "reduce", "signal", "wait"]


@triton.jit
def memory(table, rank, dtype: tl.constexpr):
    """A pointer to a rank's memory, which is of this type."""
    return tl.load(table + rank).to(tl.pointer_type(dtype))


@triton.jit
def _word(table, size: tl.constexpr, slots: tl.constexpr, to, source, slot):
    """The word at `to` that `source` counts up."""
    return tl.load(table + size + to).to(tl.pointer_type(tl.int64)) + source * slots + slot


@triton.jit
def put(table, to, offsets, values, mask, dtype: tl.constexpr):
    """Stores values at these elements of a rank's memory. The rank sees them after it waited for a later signal."""
    tl.store(memory(table, to, dtype) + offsets, values.to(dtype), mask=mask)


@triton.jit
def get(table, source, offsets, mask, dtype: tl.constexpr):
    """These elements of a rank's memory; 0 where the mask is not set."""
    return tl.load(memory(table, source, dtype) + offsets, mask=mask, other=0, volatile=True)


@triton.jit
def signal(table, rank, size: tl.constexpr, slots: tl.constexpr, to, slot):
    """Adds one to this rank's word there, after all that the program stored."""
    tl.debug_barrier()
    tl.atomic_add(_word(table, size, slots, to, rank, slot), 1, sem="release", scope="sys")


@triton.jit
def wait(table, rank, size: tl.constexpr, slots: tl.constexpr, source, slot, count, looks):
    """Waits until that rank's word has reached `count`. False: it did not within so many looks."""
    word = _word(table, size, slots, rank, source, slot)
    seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    looked = 1
    while (seen < count) & (looked < looks):
        seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
        looked += 1
    tl.debug_barrier()
    return seen >= count


@triton.jit
def barrier(table, rank, size: tl.constexpr, slots: tl.constexpr, slot, count, looks):
    """All ranks: what each stored before, all see after. `count` is 1 for a slot's first barrier, then 2, ...

    False: a rank did not come within so many looks.
    """
    for peer in range(size):
        signal(table, rank, size, slots, peer, slot)
    came = True
    for peer in range(size):
        came = wait(table, rank, size, slots, peer, slot, count, looks) & came
    return came


@triton.jit
def reduce(table, size: tl.constexpr, offsets, mask, dtype: tl.constexpr):
    """The sum of these elements of all ranks' memory, in rank order: in float32, or in the type itself for integers."""
    total = get(table, 0, offsets, mask, dtype)
    if total.dtype.is_floating():
        total = total.to(tl.float32)
    for peer in range(1, size):
        total += get(table, peer, offsets, mask, dtype).to(total.dtype)
    return total


@triton.jit
def all_reduce(
    table,
    output,
    failed,
    count,
    turn,
    looks,
    rank: tl.constexpr,
    size: tl.constexpr,
    slots: tl.constexpr,
    dtype: tl.constexpr,
    block: tl.constexpr,
):
    """An example, a kernel: `output` becomes the sum of the first `count` elements of all ranks' memory.

    Launched as (programs,) by every rank, with `turn` 0, 1, 2, .. for each use of the window; program i uses slot i. `failed` is
    an int32 that becomes 1 where a rank did not come.
    """
    slot = tl.program_id(0)
    came = barrier(table, rank, size, slots, slot, 2 * turn + 1, looks)
    if came:
        for begin in range(slot * block, count, tl.num_programs(0) * block):
            offsets = begin + tl.arange(0, block)
            mask = offsets < count
            tl.store(output + offsets, reduce(table, size, offsets, mask, dtype).to(dtype), mask=mask)
        came = barrier(table, rank, size, slots, slot, 2 * turn + 2, looks)  # then ranks may write to their memory again
    if not came:
        tl.store(failed, 1)

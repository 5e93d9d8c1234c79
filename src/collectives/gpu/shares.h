// Shared by the operations: a block's state, and how bytes are divided among ranks and blocks.
#pragma once

#include "collectives/gpu/elements.h"
#include "collectives/gpu/waiting.h"

namespace towline::collectives::gpu {

// State of one block.
struct Scratch {
  uint64_t from[kMaxRanks];
  uint64_t to[kMaxRanks];
  uint64_t first[kMaxRanks];
  uint64_t second[kMaxRanks];
  uint64_t third[kMaxRanks];
  float partial[kThreads / 32];
  uint64_t sums[kRowSums];  // of a cluster's warps
  uint64_t arrivals;        // counts them
};

TOWLINE_DEVICE uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
// The length of the piece of `bytes` that begins at `offset`: at most `most`.
TOWLINE_DEVICE uint64_t rest(uint64_t bytes, uint64_t offset, uint64_t most) {
  return offset < bytes ? smaller(bytes - offset, most) : 0;
}

// Moves without combining: the element does not matter.
struct NoElement {
  using Bits = uint8_t;
};

template <class E>
TOWLINE_DEVICE void contribute(const Job& job, uint64_t to, uint64_t from, uint64_t bytes) {
  if constexpr (!std::is_same_v<E, NoElement> && !std::is_same_v<E, BoolElement>) {
    if (job.reduces != 0 && job.mark.reduction == TOWLINE_REDUCE_PREMUL_SUM)
      return scale_range<E>(to, from, bytes / sizeof(typename E::Bits), job.factor);
  }
  device::copy(to, from, bytes);
}

// A block's share of a part.
struct Share {
  uint64_t begin;
  uint64_t bytes;
};
TOWLINE_DEVICE Share share_of(uint64_t bytes, uint32_t index, uint32_t parts) {
  const uint64_t each = (bytes + parts - 1) / parts;
  const uint64_t even = (each + 127) / 128 * 128;
  const uint64_t begin = smaller(bytes, even * index);
  return {begin, smaller(bytes - begin, even)};
}

// Begins a turn: what other ranks' messages would say of this operation. A kernel calls it before it touches memory.
TOWLINE_DEVICE Turn begin_turn(const Job& job, uint32_t block, uint32_t blocks) {
  await_those_ahead();
  Control& me = control_of(job, job.rank);
  if (block == 0 && device::thread() == 0) {
    show_what_was(job);
    store_mark(me.current, job.mark);
  }
  return {block, blocks, me.epoch[block]};
}
TOWLINE_DEVICE void end_turn(const Job& job, const Turn& turn) {
  device::sync();
  if (device::thread() == 0) control_of(job, job.rank).epoch[turn.block] = turn.epoch;
}

TOWLINE_DEVICE uint64_t largest_part(const Job& job) {
  uint64_t most = 0;
  for (uint32_t peer = 0; peer < job.size; ++peer) {
    most = job.in_bytes[peer] > most ? job.in_bytes[peer] : most;
    most = job.out_bytes[peer] > most ? job.out_bytes[peer] : most;
  }
  return most;
}

}  // namespace towline::collectives::gpu

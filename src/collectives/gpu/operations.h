// The operations, as each block of each rank runs them. One source for the GPU and for the model of it that tests run
// on processors, where a block has one thread and the blocks of a rank run one after the other, but those of a row at the same time
// (Grid::meeting).
//
// So a block waits for the same block of other ranks and for the blocks of its row only, and what it reads of other ranks', the same block
// wrote.
#pragma once

#include "collectives/gpu/hop_operations.h"
#include "collectives/gpu/lines.h"
#include "collectives/gpu/marked.h"
#include "collectives/gpu/marked_units.h"
#include "collectives/gpu/norm.h"
#include "collectives/gpu/norm_lines.h"
#include "collectives/gpu/norm_marked.h"
#include "collectives/gpu/pushed.h"
#include "collectives/gpu/shares.h"
#include "collectives/gpu/window_operations.h"

namespace towline::collectives::gpu {

// ---- One process, one GPU: no copies

template <class E>
TOWLINE_DEVICE bool run_direct(const Job& job, Turn& turn, Scratch& scratch) {
  if (!swap_words(
          job, turn, scratch.first, scratch.second, [&](uint32_t peer) { return job.in[peer]; },
          [&](uint32_t peer) { return job.in_bytes[peer]; }))
    return false;
  if constexpr (!std::is_same_v<E, NoElement>) {
    if (job.receives != 0) {
      const Share mine = share_of(job.out_bytes[job.rank], turn.block, turn.blocks);
      for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads())
        scratch.from[peer] = scratch.first[peer] + mine.begin;
      if (device::thread() == 0) scratch.to[0] = job.out[job.rank] + mine.begin;
      device::sync();
      reduce_range<E>(job, scratch.from, scratch.to, 1, mine.bytes / sizeof(typename E::Bits));
    }
  } else {
    for (uint32_t i = 0; i < job.size; ++i) {
      const uint32_t peer = (job.rank + i) % job.size;
      if (job.compare != 0 && scratch.second[peer] != job.out_bytes[peer]) {
        if (device::thread() == 0)
          fail_with(job, Failure::kBytes, peer, scratch.second[peer], job.out_bytes[peer]);
        return false;
      }
      const Share part = share_of(job.out_bytes[peer], turn.block, turn.blocks);
      const uint64_t from = scratch.first[peer];
      if (part.bytes != 0 && from != job.out[peer])
        device::copy(job.out[peer] + part.begin, from + part.begin, part.bytes);
    }
  }
  return meet(job, turn);
}

// Each rank reduces its part of everything and writes it to all. Only it reads that part of any input, and each thread
// before it writes there, so outputs may be inputs.
template <class E>
TOWLINE_DEVICE bool run_two_shot(const Job& job, Turn& turn, Scratch& scratch) {
  if (!swap_words(
          job, turn, scratch.first, scratch.second, [&](uint32_t) { return job.in[0]; },
          [&](uint32_t) { return job.out[0]; }))
    return false;
  const Share rank = share_of(job.bytes, job.rank, job.size);
  const Share mine = share_of(rank.bytes, turn.block, turn.blocks);
  for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads()) {
    scratch.from[peer] = scratch.first[peer] + rank.begin + mine.begin;
    scratch.to[peer] = scratch.second[peer] + rank.begin + mine.begin;
  }
  device::sync();
  reduce_range<E>(job, scratch.from, scratch.to, job.size, mine.bytes / sizeof(typename E::Bits));
  return meet(job, turn);
}

// ---- Through staging memory

TOWLINE_DEVICE uint64_t stage_of(const Job& job, uint32_t rank, uint32_t block, uint32_t part) {
  return job.segment[rank] + staging_at(job.size) + (static_cast<uint64_t>(block) * kStages + part) * kChunk;
}

template <class E>
TOWLINE_DEVICE bool run_staged(const Job& job, Turn& turn, Scratch& scratch) {
  const uint64_t slot = job.shared != 0 ? kChunk : kChunk / job.size / 256 * 256;
  const uint64_t of_all = slot * turn.blocks;
  uint64_t rounds = (largest_part(job) + of_all - 1) / of_all;
  if (job.compare != 0 && !agree_on_parts(job, turn, scratch, rounds)) return false;
  for (uint64_t round = 0; round == 0 || round < rounds; ++round) {
    const uint64_t at = (round * turn.blocks + turn.block) * slot;
    const uint32_t half = (turn.epoch + 1) & 1;  // of the meeting to come
    const uint64_t stage = stage_of(job, job.rank, turn.block, half);
    for (uint32_t peer = 0; peer < job.size; ++peer) {
      const uint32_t of = job.shared != 0 ? job.peer : peer;  // shared: one that gets all
      if (const uint64_t bytes = rest(job.in_bytes[of], at, slot); bytes != 0)
        contribute<E>(job, stage + (job.shared != 0 ? 0 : peer * slot), job.in[of] + at, bytes);
      if (job.shared != 0) break;
    }
    if (!meet(job, turn)) return false;
    const uint64_t from = job.shared != 0 ? 0 : job.rank * slot;
    if constexpr (!std::is_same_v<E, NoElement>) {
      const uint64_t bytes = job.receives != 0 ? rest(job.out_bytes[job.rank], at, slot) : 0;
      for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads())
        scratch.from[peer] = stage_of(job, peer, turn.block, half) + from;
      if (device::thread() == 0) scratch.to[0] = job.out[job.rank] + at;
      device::sync();
      reduce_range<E>(job, scratch.from, scratch.to, 1, bytes / sizeof(typename E::Bits));
    } else {
      for (uint32_t i = 0; i < job.size; ++i) {
        const uint32_t peer = (job.rank + i) % job.size;
        if (const uint64_t bytes = rest(job.out_bytes[peer], at, slot); bytes != 0)
          device::copy(job.out[peer] + at, stage_of(job, peer, turn.block, half) + from, bytes);
      }
    }
  }
  return true;
}

// all_reduce: each rank reduces a part of every block's chunk, and all collect the results.
template <class E>
TOWLINE_DEVICE bool run_staged_two(const Job& job, Turn& turn, Scratch& scratch) {
  const uint64_t of_all = kChunk * turn.blocks;
  const uint64_t rounds = (job.bytes + of_all - 1) / of_all;
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t at = (round * turn.blocks + turn.block) * kChunk;
    const uint64_t bytes = rest(job.bytes, at, kChunk);
    const uint32_t half = (turn.epoch + 1) & 1;
    contribute<E>(job, stage_of(job, job.rank, turn.block, half), job.in[0] + at, bytes);
    if (!meet(job, turn)) return false;
    const Share mine = share_of(bytes, job.rank, job.size);
    for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads())
      scratch.from[peer] = stage_of(job, peer, turn.block, half) + mine.begin;
    if (device::thread() == 0) scratch.to[0] = stage_of(job, job.rank, turn.block, 2) + mine.begin;
    device::sync();
    reduce_range<E>(job, scratch.from, scratch.to, 1, mine.bytes / sizeof(typename E::Bits));
    if (!meet(job, turn)) return false;
    for (uint32_t i = 0; i < job.size; ++i) {
      const uint32_t peer = (job.rank + i) % job.size;
      const Share part = share_of(bytes, peer, job.size);
      if (part.bytes != 0)
        device::copy(job.out[0] + at + part.begin, stage_of(job, peer, turn.block, 2) + part.begin,
                     part.bytes);
    }
  }
  return true;
}

// ---- Messages

TOWLINE_DEVICE uint64_t ring_slot(const Job& job, uint32_t at, uint32_t from, uint64_t chunk) {
  return job.segment[at] + ring_at(job.size) + (from * kRing + chunk % kRing) * kChunk;
}

// One thread waits until the word has reached `count`.
TOWLINE_DEVICE bool reach(const Job& job, const uint64_t* word, uint64_t count) {
  bool failed = false;
  if (device::thread() == 0) {
    Waiter waiter;
    while (!failed && device::load_acquire(word) < count) failed = give_up(job, waiter, job.peer, nullptr, 0);
  }
  return !device::sync_any(failed);
}

TOWLINE_DEVICE void run_send(const Job& job) {
  Control& me = control_of(job, job.rank);
  Control& there = control_of(job, job.peer);
  uint64_t sent = me.sent[job.peer];
  for (uint64_t at = 0; at == 0 || at < job.bytes; at += kChunk) {
    if (!reach(job, &me.drained[job.peer], sent < kRing ? 0 : sent - kRing + 1)) return;
    device::copy(ring_slot(job, job.peer, job.rank, sent), job.in[0] + at, rest(job.bytes, at, kChunk));
    device::sync();
    if (device::thread() == 0) {
      me.ring_mark[job.peer][sent % kRing] = job.mark;
      device::store_relaxed(&there.ring_digest[job.rank][sent % kRing], job.digest);
      device::store_release(&there.filled[job.rank], sent + 1);
    }
    ++sent;
  }
  device::sync();
  if (device::thread() == 0) me.sent[job.peer] = sent;
}

TOWLINE_DEVICE void run_receive(const Job& job) {
  Control& me = control_of(job, job.rank);
  Control& there = control_of(job, job.peer);
  uint64_t received = me.received[job.peer];
  for (uint64_t at = 0; at == 0 || at < job.bytes; at += kChunk) {
    if (!reach(job, &me.filled[job.peer], received + 1)) return;
    if (device::load_relaxed(&me.ring_digest[job.peer][received % kRing]) != job.digest) {
      if (device::thread() == 0)
        fail_with(job, Failure::kMismatch, job.peer, 0, 0, &there.ring_mark[job.rank][received % kRing]);
      return;
    }
    device::copy(job.out[0] + at, ring_slot(job, job.rank, job.peer, received), rest(job.bytes, at, kChunk));
    device::sync();
    ++received;
    if (device::thread() == 0) device::store_release(&there.drained[job.rank], received);
  }
  device::sync();
  if (device::thread() == 0) me.received[job.peer] = received;
}

TOWLINE_DEVICE void run_tell(const Job& job) {
  if (device::thread() != 0) return;
  const auto failure = static_cast<Failure>(job.peer);
  if (failure != Failure::kLeft) return fail_with(job, failure, job.rank, 0, 0);
  for (uint32_t peer = 0; peer < job.size; ++peer)
    if (peer != job.rank) device::store_release(&control_of(job, peer).left[job.rank], 1);
}

// ---- A kernel's block

template <class E>
TOWLINE_DEVICE void run_reducing(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  Turn turn = begin_turn(job, block, blocks);
  switch (job.way) {
    case Way::kDirect:
      (void)run_direct<E>(job, turn, scratch);
      break;
    case Way::kTwoShot:
      (void)run_two_shot<E>(job, turn, scratch);
      break;
    case Way::kStaged:
      (void)run_staged<E>(job, turn, scratch);
      break;
    case Way::kStagedTwo:
      (void)run_staged_two<E>(job, turn, scratch);
      break;
    case Way::kPushed:
      (void)run_pushed<E>(job, turn, scratch);
      break;
    case Way::kPushedTwo:
      (void)run_pushed_two<E>(job, turn, scratch);
      break;
    default:
      break;
  }
  end_turn(job, turn);
}

// The smallest operations have kernels of their own, which are small.
template <class E>
TOWLINE_DEVICE void run_small(const Job& job, uint32_t block, uint32_t blocks) {
  Turn turn = begin_turn(job, block, blocks);
  if constexpr (std::is_same_v<E, NoElement>) {
    run_marked<E>(job, turn);
  } else {
    if (job.way == Way::kMarkedTwo)
      run_marked_two<E>(job, turn);
    else
      run_marked<E>(job, turn);
  }
  end_turn(job, turn);
}

// The same in lines, for up to kRanks ranks.
template <class E, uint32_t kRanks, bool kOdd>
TOWLINE_DEVICE void run_in_lines_so(const Job& job, Turn& turn) {
  if constexpr (!std::is_same_v<E, NoElement> && kRanks > 2)
    if (job.way == Way::kMarkedTwo) return run_lines_two<E, kRanks, kOdd>(job, turn);
  run_lines<E, kRanks, kOdd>(job, turn);
}
template <class E, uint32_t kRanks>
TOWLINE_DEVICE void run_in_lines(const Job& job, uint32_t block, uint32_t blocks) {
  Turn turn = begin_turn(job, block, blocks);
  if (is_odd(job))
    run_in_lines_so<E, kRanks, true>(job, turn);
  else
    run_in_lines_so<E, kRanks, false>(job, turn);
  end_turn(job, turn);
}

TOWLINE_DEVICE void run_moving(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  await_those_ahead();
  if (job.way == Way::kTell) return run_tell(job);
  if (job.way == Way::kMove) return run_move(job, block, blocks);
  if (job.way == Way::kSignal) return run_signal(job);
  if (job.way == Way::kAwait) return run_await(job);
  if (job.way == Way::kPost) return run_post(job);
  if (job.way == Way::kSend) return run_send(job);
  if (job.way == Way::kReceive) return run_receive(job);
  Turn turn = begin_turn(job, block, blocks);
  if (job.way == Way::kBarrier)
    (void)meet(job, turn);
  else if (job.way == Way::kDirect)
    (void)run_direct<NoElement>(job, turn, scratch);
  else if (job.way == Way::kPushed)
    (void)run_pushed<NoElement>(job, turn, scratch);
  else
    (void)run_staged<NoElement>(job, turn, scratch);
  end_turn(job, turn);
}

// By datatype, then the one that moves; the small ones in the same order.
inline constexpr uint32_t kMovingKernel = TOWLINE_BOOL + 1;
inline constexpr uint32_t kSmallKernels = kMovingKernel + 1;
inline constexpr uint32_t kNormKernels = 2 * kSmallKernels;
inline constexpr uint32_t kFloatTypes = 3;  // that models use: TOWLINE_FLOAT_KERNELS
// Norms; then, for 2, 4 and 8 ranks each, those with marks; then those in lines, and the one that moves; then norms in lines; then small sums;
// then norms of rows that start at multiples of 8; then, for 4 and 8 ranks, small sums and norms in two shots.
inline constexpr uint32_t kMarkedNormKernels = kNormKernels + kFloatTypes;
inline constexpr uint32_t kLineKernels = kMarkedNormKernels + 3 * kFloatTypes;
inline constexpr uint32_t kLineNormKernels = kLineKernels + 3 * (kFloatTypes + 1);
inline constexpr uint32_t kMarkedSumKernels = kLineNormKernels + 3 * kFloatTypes;
inline constexpr uint32_t kMarkedRowKernels = kMarkedSumKernels + 3 * kFloatTypes;
inline constexpr uint32_t kOwnedKernels = kMarkedRowKernels + 3 * kFloatTypes;
inline constexpr uint32_t kKernels = kOwnedKernels + 2 * kFloatTypes;
constexpr uint32_t ranks_row(uint32_t size) { return size <= 2 ? 0 : size <= 4 ? 1 : 2; }
constexpr uint32_t marked_norm_kernel(uint32_t size, uint32_t type) {
  return kMarkedNormKernels + ranks_row(size) * kFloatTypes + type;
}
constexpr uint32_t line_kernel(uint32_t size, uint32_t type) {
  return kLineKernels + ranks_row(size) * (kFloatTypes + 1) + type;
}
constexpr uint32_t line_norm_kernel(uint32_t size, uint32_t type) {
  return kLineNormKernels + ranks_row(size) * kFloatTypes + type;
}
constexpr uint32_t marked_sum_kernel(uint32_t size, uint32_t type) {
  return kMarkedSumKernels + ranks_row(size) * kFloatTypes + type;
}
constexpr uint32_t marked_row_kernel(uint32_t size, uint32_t type) {
  return kMarkedRowKernels + ranks_row(size) * kFloatTypes + type;
}
// Of more than two ranks.
constexpr uint32_t owned_kernel(uint32_t size, uint32_t type) {
  return kOwnedKernels + (size <= 4 ? 0 : kFloatTypes) + type;
}
// kFloatTypes: not one of them.
constexpr uint32_t float_type(uint32_t datatype) {
  switch (datatype) {
    case TOWLINE_FLOAT32:
      return 0;
    case TOWLINE_FLOAT16:
      return 1;
    case TOWLINE_BFLOAT16:
      return 2;
    default:
      return kFloatTypes;
  }
}

#define TOWLINE_FLOAT_KERNELS(apply)                                        \
  apply(float32, PlainElement<float>) apply(float16, SmallElement<Float16>) \
      apply(bfloat16, SmallElement<Bfloat16>)

#define TOWLINE_RANKED_FLOAT_KERNELS_OF(apply, ranks)                                     \
  apply(float32, PlainElement<float>, ranks) apply(float16, SmallElement<Float16>, ranks) \
      apply(bfloat16, SmallElement<Bfloat16>, ranks)
#define TOWLINE_OWNED_FLOAT_KERNELS(apply) \
  TOWLINE_RANKED_FLOAT_KERNELS_OF(apply, 4) TOWLINE_RANKED_FLOAT_KERNELS_OF(apply, 8)
#define TOWLINE_RANKED_FLOAT_KERNELS(apply) \
  TOWLINE_RANKED_FLOAT_KERNELS_OF(apply, 2) \
  TOWLINE_RANKED_FLOAT_KERNELS_OF(apply, 4) TOWLINE_RANKED_FLOAT_KERNELS_OF(apply, 8)

#define TOWLINE_LINE_KERNELS_OF(apply, ranks)                                             \
  apply(float32, PlainElement<float>, ranks) apply(float16, SmallElement<Float16>, ranks) \
      apply(bfloat16, SmallElement<Bfloat16>, ranks) apply(moving, NoElement, ranks)
#define TOWLINE_LINE_KERNELS(apply) \
  TOWLINE_LINE_KERNELS_OF(apply, 2) TOWLINE_LINE_KERNELS_OF(apply, 4) TOWLINE_LINE_KERNELS_OF(apply, 8)

#define TOWLINE_COLLECTIVE_KERNELS(apply)                                                                    \
  apply(float32, TOWLINE_FLOAT32, PlainElement<float>) apply(float64, TOWLINE_FLOAT64, PlainElement<double>) \
      apply(float16, TOWLINE_FLOAT16, SmallElement<Float16>)                                                 \
          apply(bfloat16, TOWLINE_BFLOAT16, SmallElement<Bfloat16>)                                          \
              apply(float8_e4m3, TOWLINE_FLOAT8_E4M3, TinyElement<Float8E4m3>)                               \
                  apply(float8_e5m2, TOWLINE_FLOAT8_E5M2, TinyElement<Float8E5m2>)                           \
                      apply(int8, TOWLINE_INT8, PlainElement<int8_t>)                                        \
                          apply(uint8, TOWLINE_UINT8, PlainElement<uint8_t>)                                 \
                              apply(int16, TOWLINE_INT16, PlainElement<int16_t>)                             \
                                  apply(uint16, TOWLINE_UINT16, PlainElement<uint16_t>)                      \
                                      apply(int32, TOWLINE_INT32, PlainElement<int32_t>)                     \
                                          apply(uint32, TOWLINE_UINT32, PlainElement<uint32_t>)              \
                                              apply(int64, TOWLINE_INT64, PlainElement<int64_t>)             \
                                                  apply(uint64, TOWLINE_UINT64, PlainElement<uint64_t>)      \
                                                      apply(bool, TOWLINE_BOOL, BoolElement)

}  // namespace towline::collectives::gpu

// Between GPUs: every rank stores what others need into their slots, and each then works on its own memory. Stores
// travel one way, where loads of another GPU's memory would wait for the way there and back.
//
// A block's bytes go in rounds. It stores round n + 1 before it waits for round n, so that the links carry one round while
// the other is worked on. Slots are numbered by the signal that says that they are filled, three in turn: a rank that waited
// for signal n knows that others have worked on the slots of signal n - 2, since they do so before they signal n. The same
// holds from one operation to the next: signals count on.
#pragma once

#include "collectives/gpu/shares.h"

namespace towline::collectives::gpu {

// The slot of `from` in the memory of `at`. `results`: the slot for the second half of an all_reduce.
TOWLINE_DEVICE uint64_t pushed_slot(const Job& job, uint32_t at, uint32_t from, const Turn& turn,
                                    uint32_t epoch, uint32_t results) {
  const uint64_t index =
      (static_cast<uint64_t>(turn.block) * kPushedTurns + epoch % kPushedTurns) * 2 + results;
  return job.segment[at] + staging_at(job.size) + index * kChunk + from * pushed_slot_bytes(job.size);
}

// Says that this rank's stores are done, those of the signal to come. All threads.
TOWLINE_DEVICE void arrive(const Job& job, Turn& turn) {
  device::sync();
  ++turn.epoch;
  for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads())
    set_signal(job, turn, peer, true);
}
// Waits until all ranks said so. All threads. False: it failed.
TOWLINE_DEVICE bool await_all(const Job& job, const Turn& turn) {
  bool failed = false;
  for (uint32_t peer = device::thread(); peer < job.size && !failed; peer += device::threads())
    failed = await_signal(job, turn, peer);
  return !device::sync_any(failed);
}

TOWLINE_DEVICE bool is_scaled(const Job& job) {
  return job.reduces != 0 && job.mark.reduction == TOWLINE_REDUCE_PREMUL_SUM;
}

// Stores one round for the signal to come. This rank's own part is not stored, unless it is scaled.
template <class E>
TOWLINE_DEVICE void push_round(const Job& job, const Turn& turn, uint64_t at) {
  for (uint32_t i = is_scaled(job) ? 0 : 1; i < job.size; ++i) {
    const uint32_t peer = (job.rank + i) % job.size;
    if (const uint64_t bytes = rest(job.in_bytes[peer], at, job.slot); bytes != 0)
      contribute<E>(job, pushed_slot(job, peer, job.rank, turn, turn.epoch + 1, 0), job.in[peer] + at, bytes);
  }
}

template <class E>
TOWLINE_DEVICE void take_round(const Job& job, const Turn& turn, Scratch& scratch, uint64_t at) {
  const bool stays = !is_scaled(job);
  if constexpr (!std::is_same_v<E, NoElement>) {
    const uint64_t bytes = job.receives != 0 ? rest(job.out_bytes[job.rank], at, job.slot) : 0;
    for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads())
      scratch.from[peer] = stays && peer == job.rank ? job.in[peer] + at
                                                     : pushed_slot(job, job.rank, peer, turn, turn.epoch, 0);
    if (device::thread() == 0) scratch.to[0] = job.out[job.rank] + at;
    device::sync();
    reduce_range<E>(job, scratch.from, scratch.to, 1, bytes / sizeof(typename E::Bits));
  } else {
    for (uint32_t i = 0; i < job.size; ++i) {
      const uint32_t peer = (job.rank + i) % job.size;
      const uint64_t bytes = rest(job.out_bytes[peer], at, job.slot);
      const uint64_t from =
          peer == job.rank ? job.in[peer] + at : pushed_slot(job, job.rank, peer, turn, turn.epoch, 0);
      if (bytes != 0 && from != job.out[peer] + at) device::copy(job.out[peer] + at, from, bytes);
    }
  }
}

// Compares the sizes of parts, where ranks may disagree on them. `rounds` becomes the most of any rank. False: failed.
TOWLINE_DEVICE bool agree_on_parts(const Job& job, Turn& turn, Scratch& scratch, uint64_t& rounds) {
  const uint64_t mine = rounds;
  if (!swap_words(
          job, turn, scratch.first, scratch.second, [&](uint32_t peer) { return job.in_bytes[peer]; },
          [&](uint32_t) { return mine; }))
    return false;
  for (uint32_t peer = 0; peer < job.size; ++peer) {
    if (scratch.first[peer] != job.out_bytes[peer]) {
      if (device::thread() == 0)
        fail_with(job, Failure::kBytes, peer, scratch.first[peer], job.out_bytes[peer]);
      return false;
    }
    rounds = scratch.second[peer] > rounds ? scratch.second[peer] : rounds;
  }
  return true;
}

template <class E>
TOWLINE_DEVICE bool run_pushed(const Job& job, Turn& turn, Scratch& scratch) {
  const uint64_t of_all = job.slot * turn.blocks;
  uint64_t rounds = (largest_part(job) + of_all - 1) / of_all;
  if (job.compare != 0 && !agree_on_parts(job, turn, scratch, rounds)) return false;
  uint64_t at = job.slot * turn.block;
  push_round<E>(job, turn, at);
  arrive(job, turn);
  for (uint64_t round = 0; round == 0 || round < rounds; ++round) {
    if (round + 1 < rounds) push_round<E>(job, turn, at + of_all);
    if (!await_all(job, turn)) return false;
    take_round<E>(job, turn, scratch, at);
    if (round + 1 < rounds) arrive(job, turn);
    at += of_all;
  }
  return true;
}

// all_reduce: each rank reduces a part of every block's chunk and stores the result to all. One signal says both that the
// inputs of a round and that the results of the one before are there.
template <class E>
TOWLINE_DEVICE bool run_pushed_two(const Job& job, Turn& turn, Scratch& scratch) {
  const uint64_t of_all = job.slot * turn.blocks;
  const uint64_t rounds = (job.bytes + of_all - 1) / of_all;
  const uint64_t first = job.slot * turn.block;
  const bool stays = !is_scaled(job);
  const auto push = [&](uint64_t at) {
    for (uint32_t i = stays ? 1 : 0; i < job.size; ++i) {
      const uint32_t peer = (job.rank + i) % job.size;
      const Share part = share_of(rest(job.bytes, at, job.slot), peer, job.size);
      contribute<E>(job, pushed_slot(job, peer, job.rank, turn, turn.epoch + 1, 0),
                    job.in[0] + at + part.begin, part.bytes);
    }
  };
  push(first);
  arrive(job, turn);
  for (uint64_t round = 0; round <= rounds; ++round) {
    const uint64_t at = first + round * of_all;
    if (round + 1 < rounds) push(at + of_all);
    if (!await_all(job, turn)) return false;
    if (round < rounds) {
      const Share mine = share_of(rest(job.bytes, at, job.slot), job.rank, job.size);
      for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads()) {
        scratch.from[peer] = stays && peer == job.rank
                                 ? job.in[0] + at + mine.begin
                                 : pushed_slot(job, job.rank, peer, turn, turn.epoch, 0);
        scratch.to[peer] = peer == job.rank ? job.out[0] + at + mine.begin
                                            : pushed_slot(job, peer, job.rank, turn, turn.epoch + 1, 1);
      }
      device::sync();
      reduce_range<E>(job, scratch.from, scratch.to, job.size, mine.bytes / sizeof(typename E::Bits));
    }
    if (round != 0) {
      const uint64_t before = at - of_all;
      const uint64_t bytes = rest(job.bytes, before, job.slot);
      for (uint32_t i = 1; i < job.size; ++i) {
        const uint32_t peer = (job.rank + i) % job.size;
        const Share part = share_of(bytes, peer, job.size);
        if (part.bytes != 0)
          device::copy(job.out[0] + before + part.begin,
                       pushed_slot(job, job.rank, peer, turn, turn.epoch, 1), part.bytes);
      }
    }
    if (round < rounds) arrive(job, turn);
  }
  return true;
}

}  // namespace towline::collectives::gpu

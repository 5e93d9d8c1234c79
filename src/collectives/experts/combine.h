// Combine: the experts' results to the ranks that the tokens came from, and their sum with the tokens' weights. Three kernels:
//
//   send    blocks share the results. The last block publishes how many there are for each rank
//   await   one block waits for all ranks. A rank that returns another number than was sent to it is masked, and not used
//   reduce  blocks share the tokens: each sum is in float32, in the order of the token's routes, and is rounded once
#pragma once

#include "collectives/experts/logfmt.h"

namespace towline::collectives::experts {

TOWLINE_DEVICE uint64_t range_of(const Job& job, uint32_t expert, uint32_t rank) {
  return static_cast<uint64_t>(
      reinterpret_cast<const int64_t*>(job.layout_range)[uint64_t{expert} * job.ranks + rank]);
}

TOWLINE_DEVICE void return_plain(const Job& job, uint64_t from, uint64_t to) {
  const uint64_t row = uint64_t{2} * job.hidden;
  for (uint64_t byte = uint64_t{16} * device::thread(); byte < row; byte += uint64_t{16} * device::threads())
    device::store_pack(to + byte, device::load_pack(from + byte));
}

// All threads. `entry`: of the rank's tokens that the expert had.
TOWLINE_DEVICE void return_token(const Job& job, const Control& me, Scratch& scratch, uint32_t rank,
                                 uint32_t expert, uint64_t at, uint64_t entry) {
  const uint64_t place = uint64_t{expert} * job.ranks * job.layout.max_tokens + at;
  const auto token = static_cast<uint32_t>(reinterpret_cast<const int32_t*>(job.src_info)[place]);
  const auto half = static_cast<uint32_t>((me.sent[rank] + 1) & 1);
  uint32_t used = kNoSlot;
  if (token < job.layout.max_tokens) {  // else it would be another's memory
    const uint64_t from = job.x + place * 2 * job.hidden;
    const uint64_t slot = me.slots[rank] + job.layout.slot_at(half, job.rank, expert, token);
    used = token;
    if ((job.format & kLogFmt) == 0)
      return_plain(job, from, slot + kHeaderBytes);
    else if (send_cast(from, slot, job.hidden, scratch) > Layout::used_bytes_of(job.hidden, job.format))
      used |= kWholeSlot;
  }
  if (is_remote(job, me, rank) && device::thread() == 0)
    device::store_unit<uint32_t>(
        me.peer[rank] + job.layout.used_at(half, expert * job.layout.max_tokens + entry), used);
}

TOWLINE_DEVICE void publish_returned(const Job& job, Control& me) {
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    if (me.peer[rank] == 0 || is_masked(me, rank)) continue;
    join_session(me, rank);
    const uint64_t number = ++me.sent[rank];
    uint64_t count = 0;
    const bool remote = is_remote(job, me, rank);
    for (uint32_t expert = 0; expert < job.layout.local; ++expert) {
      const uint64_t of_expert = range_of(job, expert, rank) & 0xffffffff;
      count += of_expert;
      if (remote)
        device::store_relaxed(
            reinterpret_cast<uint64_t*>(me.peer[rank] + job.layout.count_at(number & 1, job.rank, expert)),
            of_expert);
    }
    Control& there = peer_control(me, rank);
    device::store_relaxed(&there.shape[number & 1][job.rank], shape_of(job, true));
    if (remote)
      say_ready(job, me, rank);
    else
      device::store_release(&there.returned[number & 1][job.rank], make_flag(me.theirs[rank], number, count));
  }
}

TOWLINE_DEVICE void run_combine_send(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  Control& me = own(job);
  await_rooms(job, me, scratch);
  const uint32_t pairs = job.layout.local * job.ranks;
  const uint32_t parts = blocks / pairs > 1 ? blocks / pairs : 1;
  for (uint32_t item = block; item < pairs * parts; item += blocks) {
    const uint32_t expert = item / parts / job.ranks;
    const uint32_t rank = item / parts % job.ranks;
    if (scratch.rank[rank] == 0) continue;
    const uint64_t range = range_of(job, expert, rank);
    for (uint64_t token = item % parts; token < (range & 0xffffffff); token += parts)
      return_token(job, me, scratch, rank, expert, (range >> 32) + token, token);
  }
  if (last_block(job, blocks)) publish_returned(job, me);
}

TOWLINE_DEVICE void run_combine_await(const Job& job, Scratch& scratch) {
  Control& me = own(job);
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    scratch.rank[rank] = 0;  // a stop for await_flag: none
    scratch.routes[rank] = 0;
  }
  device::sync();
  for (uint32_t i = device::thread(); i < job.tokens * job.topk; i += device::threads()) {
    const uint32_t expert = expert_of(job, i / job.topk, i % job.topk);
    if (expert != kNoExpert) add_in_block(&scratch.routes[expert / job.layout.local], 1);
  }
  device::sync();
  const uint64_t began = device::now_ns();
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    bool came = false;
    if (takes_part(me, rank)) {
      const auto half = static_cast<uint32_t>((me.got[rank] + 1) & 1);
      const uint64_t* const flag = &from_peer(me, rank).returned[half][rank];
      came = await_flag(job, me, rank, flag, &scratch.rank[rank]) &&
             flag_count(device::load_relaxed(flag)) == scratch.routes[rank] &&
             device::load_relaxed(&from_peer(me, rank).shape[half][rank]) == shape_of(job, true);
      if (came)
        ++me.got[rank];
      else
        give_up_on(me, rank);
      if (job.wait_ns != 0)
        reinterpret_cast<int64_t*>(job.wait_ns)[rank] += static_cast<int64_t>(device::now_ns() - began);
    }
    me.usable[rank] = came ? 1 : 0;
  }
}

struct Sums {
  float of[8];
};

TOWLINE_DEVICE void add_weighted(Sums& sums, const device::Pack& pack, float weight) {
  TOWLINE_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    sums.of[2 * i] += low_of(pack.word[i]) * weight;
    sums.of[2 * i + 1] += high_of(pack.word[i]) * weight;
  }
}

TOWLINE_DEVICE device::Pack rounded(const Sums& sums) {
  device::Pack made;
  TOWLINE_UNROLL
  for (uint32_t i = 0; i < 4; ++i)
    made.word[i] =
        Bfloat16::narrow(sums.of[2 * i]) | static_cast<uint32_t>(Bfloat16::narrow(sums.of[2 * i + 1])) << 16;
  return made;
}

// The slot of the result of each of the token's routes (scratch.to), 0 for those that count as nothing.
TOWLINE_DEVICE void find_results(const Job& job, const Control& me, uint32_t token, Scratch& scratch) {
  for (uint32_t k = device::thread(); k < job.topk; k += device::threads()) {
    scratch.to[k] = 0;
    const uint32_t expert = named_expert(job, token, k);
    if (expert == kNoExpert) continue;
    const uint32_t rank = expert / job.layout.local;
    if (me.usable[rank] == 0) continue;
    scratch.to[k] = job.segment + job.layout.slot_at(static_cast<uint32_t>(me.got[rank] & 1), rank,
                                                     expert % job.layout.local, token);
  }
  device::sync();
}

TOWLINE_DEVICE void reduce_plain(const Job& job, const Scratch& scratch, const float* weights, uint64_t to) {
  for (uint64_t byte = uint64_t{16} * device::thread(); byte < uint64_t{2} * job.hidden;
       byte += uint64_t{16} * device::threads()) {
    Sums sums = {};
    for (uint32_t k = 0; k < job.topk; ++k)
      if (scratch.to[k] != 0)
        add_weighted(sums, device::load_pack(scratch.to[k] + kHeaderBytes + byte), weights[k]);
    device::store_pack(to + byte, rounded(sums));
  }
}

TOWLINE_DEVICE void reduce_cast(const Job& job, const Scratch& scratch, const float* weights, uint64_t to) {
  for (uint32_t unit = device::thread(); unit < job.hidden / kUnitValues; unit += device::threads()) {
    Sums sums[2] = {};
    for (uint32_t k = 0; k < job.topk; ++k) {
      if (scratch.to[k] == 0) continue;
      float values[kUnitValues];
      read_unit(scratch.to[k], job.hidden, unit, values);
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < kUnitValues; ++i) sums[i / 8].of[i % 8] += values[i] * weights[k];
    }
    for (uint32_t half = 0; half < 2; ++half)
      device::store_pack(to + uint64_t{unit} * 2 * kUnitValues + 16 * half, rounded(sums[half]));
  }
}

TOWLINE_DEVICE void run_combine_reduce(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  Control& me = own(job);
  for (uint32_t token = block; token < job.tokens; token += blocks) {
    find_results(job, me, token, scratch);
    const auto* const weights = reinterpret_cast<const float*>(job.topk_weights) + uint64_t{token} * job.topk;
    const uint64_t to = job.out + uint64_t{token} * 2 * job.hidden;
    if ((job.format & kLogFmt) == 0)
      reduce_plain(job, scratch, weights, to);
    else
      reduce_cast(job, scratch, weights, to);
    device::sync();
  }
  if (last_block(job, blocks)) tell_taken(job, me);
}

}  // namespace towline::collectives::experts

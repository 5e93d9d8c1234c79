// Dispatch: each token to the ranks of its top-k experts. Three kernels:
//
//   send   blocks share the tokens. The last block to end publishes the counts, which are the flags
//   await  one block waits for the counts of all ranks, and decides what is taken from whom
//   pack   blocks copy what came to the packed layout; the last block tells the senders that their slots are free
//
// Only `await`, which is one block, waits for other ranks as a rule, so kernels of several ranks fit on one GPU. Tokens lie
// in the order of their ranks and, of each rank, in the order that they have there: the same in every run.
#pragma once

#include "collectives/experts/fp8.h"
#include "collectives/experts/pairs.h"

namespace towline::collectives::experts {

// Verdicts of all ranks in scratch.rank: 1 if this rank may send to them.
TOWLINE_DEVICE void await_rooms(const Job& job, Control& me, Scratch& scratch) {
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    scratch.rank[rank] = await_room(job, me, rank) ? 1 : 0;
  device::sync();
}

// ---- Send

// The place of each of the token's routes among those of the same expert: before it come the earlier tokens that have it.
TOWLINE_DEVICE void find_slots(const Job& job, uint32_t token, Scratch& scratch) {
  for (uint32_t k = device::thread(); k < job.topk; k += device::threads()) {
    scratch.expert[k] = expert_of(job, token, k);
    scratch.slot[k] = 0;
  }
  device::sync();
  const auto* const routes = reinterpret_cast<const int64_t*>(job.topk_idx);
  for (uint32_t other = device::thread(); other < token; other += device::threads())
    for (uint32_t k = 0; k < job.topk; ++k) {
      const uint32_t expert = scratch.expert[k];
      if (expert == kNoExpert) continue;
      bool has = false;
      for (uint32_t its = 0; its < job.topk; ++its)
        has = has || routes[uint64_t{other} * job.topk + its] == static_cast<int64_t>(expert);
      if (has) add_in_block(&scratch.slot[k], 1);
    }
  device::sync();
}

// Where the token goes for each route: scratch.to, 0 for nowhere. Counts it, and writes its number.
TOWLINE_DEVICE void address_token(const Job& job, Control& me, uint32_t token, Scratch& scratch) {
  auto* const routed = reinterpret_cast<uint64_t*>(job.segment + job.layout.routed_at());
  for (uint32_t k = device::thread(); k < job.topk; k += device::threads()) {
    const uint32_t expert = scratch.expert[k];
    scratch.to[k] = 0;
    if (expert == kNoExpert) {
      const int64_t named = reinterpret_cast<const int64_t*>(job.topk_idx)[uint64_t{token} * job.topk + k];
      if (named < -1 || named >= static_cast<int64_t>(uint64_t{job.ranks} * job.layout.local))
        add_to(&me.dropped, 1);
      continue;
    }
    const uint32_t rank = expert / job.layout.local;
    if (scratch.rank[rank] == 0) continue;
    add_to(&routed[expert], 1);
    const auto half = static_cast<uint32_t>((me.sent[rank] + 1) & 1);
    const uint64_t slot =
        me.slots[rank] + job.layout.slot_at(half, job.rank, expert % job.layout.local, scratch.slot[k]);
    device::store_unit<uint32_t>(slot, token);
    scratch.to[k] = slot + kHeaderBytes;
  }
  device::sync();
}

TOWLINE_DEVICE void send_to_all(const Job& job, const Scratch& scratch, uint64_t offset,
                                const device::Pack& pack) {
  for (uint32_t k = 0; k < job.topk; ++k)
    if (scratch.to[k] != 0) device::store_pack(scratch.to[k] + offset, pack);
}

TOWLINE_DEVICE void send_plain(const Job& job, uint64_t from, const Scratch& scratch) {
  for (uint64_t at = uint64_t{16} * device::thread(); at < uint64_t{2} * job.hidden;
       at += uint64_t{16} * device::threads())
    send_to_all(job, scratch, at, device::load_pack(from + at));
}

// A thread takes 16 elements at a time; eight of these share a scale.
TOWLINE_DEVICE void send_fp8(const Job& job, uint64_t from, Scratch& scratch) {
  constexpr uint32_t kUnit = 16;
  const uint32_t units = job.hidden / kUnit;
  for (uint32_t unit = device::thread(); unit < units; unit += device::threads())
    scratch.largest[unit] = largest_of(from + uint64_t{unit} * 2 * kUnit);
  device::sync();
  for (uint32_t unit = device::thread(); unit < units; unit += device::threads()) {
    const uint32_t first = unit / (kScaled / kUnit) * (kScaled / kUnit);
    float largest = kSmallestLargest;
    for (uint32_t i = 0; i < kScaled / kUnit; ++i)
      largest = scratch.largest[first + i] > largest ? scratch.largest[first + i] : largest;
    const Scale scale = scale_of(largest, (job.format & kRoundScale) != 0);
    send_to_all(job, scratch, uint64_t{unit} * kUnit,
                quantised(from + uint64_t{unit} * 2 * kUnit, scale.factor));
    if (unit != first) continue;
    for (uint32_t k = 0; k < job.topk; ++k)
      if (scratch.to[k] != 0)
        device::store_unit<float>(scratch.to[k] + job.hidden + unit / (kScaled / kUnit) * sizeof(float),
                                  scale.inverse);
  }
}

// In the last block: tells every rank how many tokens came for each of its experts.
TOWLINE_DEVICE void publish_counts(const Job& job, Control& me) {
  auto* const routed = reinterpret_cast<uint64_t*>(job.segment + job.layout.routed_at());
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    if (me.peer[rank] == 0 || is_masked(me, rank)) continue;
    join_session(me, rank);
    ++me.sent[rank];
    device::store_relaxed(&peer_control(me, rank).shape[me.sent[rank] & 1][job.rank], shape_of(job, false));
  }
  device::sync();
  for (uint32_t expert = device::thread(); expert < job.ranks * job.layout.local;
       expert += device::threads()) {
    const uint32_t rank = expert / job.layout.local;
    const uint64_t count = device::load_relaxed(&routed[expert]);
    device::store_relaxed(&routed[expert], 0);
    if (me.peer[rank] == 0 || is_masked(me, rank)) continue;
    const auto half = static_cast<uint32_t>(me.sent[rank] & 1);
    auto* const flag = reinterpret_cast<uint64_t*>(
        me.peer[rank] + job.layout.count_at(half, job.rank, expert % job.layout.local));
    device::store_release(flag, make_flag(me.theirs[rank], me.sent[rank], count));
  }
  device::sync();
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    if (me.peer[rank] != 0 && !is_masked(me, rank) && is_remote(job, me, rank)) say_ready(job, me, rank);
}

TOWLINE_DEVICE void run_dispatch_send(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  Control& me = own(job);
  await_rooms(job, me, scratch);
  for (uint32_t token = block; token < job.tokens; token += blocks) {
    find_slots(job, token, scratch);
    address_token(job, me, token, scratch);
    const uint64_t from = job.x + uint64_t{token} * 2 * job.hidden;
    if ((job.format & kFp8) != 0)
      send_fp8(job, from, scratch);
    else
      send_plain(job, from, scratch);
    device::sync();
  }
  if (last_block(job, blocks)) publish_counts(job, me);
}

// ---- Await

// What came from a rank is whole and fits. One thread, when its flags are there.
TOWLINE_DEVICE bool counts_fit(const Job& job, const Control& me, uint32_t rank, uint32_t half) {
  if (device::load_relaxed(&from_peer(me, rank).shape[half][rank]) != shape_of(job, false)) return false;
  for (uint32_t expert = 0; expert < job.layout.local; ++expert) {
    const uint64_t* const flag = count_from(job, me, half, rank, expert);
    if (flag_count(device::load_relaxed(flag)) > job.layout.max_tokens) return false;
  }
  return true;
}

// Waits for each rank's flags. scratch.rank: 0 if it is late, or takes no part.
TOWLINE_DEVICE void await_counts(const Job& job, Control& me, Scratch& scratch) {
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    scratch.rank[rank] = takes_part(me, rank) ? 1 : 0;
    scratch.routes[rank] = 0;  // late
  }
  device::sync();
  const uint64_t began = device::now_ns();
  for (uint32_t i = device::thread(); i < job.ranks * job.layout.local; i += device::threads()) {
    const uint32_t rank = i % job.ranks;
    if (scratch.rank[rank] == 0) continue;
    const auto half = static_cast<uint32_t>((me.got[rank] + 1) & 1);
    const uint64_t* const flag = count_from(job, me, half, rank, i / job.ranks);
    if (!await_flag(job, me, rank, flag, &scratch.routes[rank]))
      *static_cast<volatile uint32_t*>(&scratch.routes[rank]) = 1;
    if (job.wait_ns != 0 && i < job.ranks)
      reinterpret_cast<int64_t*>(job.wait_ns)[rank] += static_cast<int64_t>(device::now_ns() - began);
  }
  device::sync();
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    if (scratch.rank[rank] == 0) continue;
    const auto half = static_cast<uint32_t>((me.got[rank] + 1) & 1);
    if (scratch.routes[rank] != 0 || !counts_fit(job, me, rank, half)) {
      scratch.rank[rank] = 0;
      give_up_on(me, rank);
    } else {
      ++me.got[rank];
    }
  }
  device::sync();
}

TOWLINE_DEVICE void run_dispatch_await(const Job& job, Scratch& scratch) {
  Control& me = own(job);
  await_counts(job, me, scratch);
  for (uint32_t expert = device::thread(); expert < job.layout.local; expert += device::threads()) {
    uint64_t begin = 0;
    for (uint32_t rank = 0; rank < job.ranks; ++rank) {
      uint64_t count = 0;
      if (scratch.rank[rank] != 0) {
        const auto half = static_cast<uint32_t>(me.got[rank] & 1);
        count = flag_count(device::load_relaxed(count_from(job, me, half, rank, expert)));
      }
      reinterpret_cast<int64_t*>(job.layout_range)[uint64_t{expert} * job.ranks + rank] =
          static_cast<int64_t>(begin << 32 | count);
      begin += count;
    }
    reinterpret_cast<int32_t*>(job.count)[expert] = static_cast<int32_t>(begin);
    if (job.stats != 0) reinterpret_cast<int32_t*>(job.stats)[expert] += static_cast<int32_t>(begin);
  }
}

// ---- Pack

// All threads. `at`: the token's place among those of the expert.
TOWLINE_DEVICE void pack_token(const Job& job, uint64_t slot, uint32_t expert, uint64_t at) {
  const uint64_t places = uint64_t{job.ranks} * job.layout.max_tokens;
  const bool fp8 = (job.format & kFp8) != 0;
  const uint64_t row = uint64_t{job.hidden} * (fp8 ? 1 : 2);
  const uint64_t to = job.out + (expert * places + at) * row;
  for (uint64_t byte = uint64_t{16} * device::thread(); byte < row; byte += uint64_t{16} * device::threads())
    device::store_pack(to + byte, device::load_pack(slot + kHeaderBytes + byte));
  if (device::thread() == 0)
    reinterpret_cast<int32_t*>(job.src_info)[expert * places + at] =
        static_cast<int32_t>(device::load_unit<uint32_t>(slot));
  if (!fp8) return;
  const uint32_t groups = job.hidden / kScaled;
  for (uint32_t group = device::thread(); group < groups; group += device::threads()) {
    const auto scale = device::load_unit<float>(slot + kHeaderBytes + job.hidden + group * sizeof(float));
    if ((job.format & kUe8m0) == 0)
      reinterpret_cast<float*>(job.scales)[(uint64_t{expert} * groups + group) * places + at] = scale;
    else  // four to a word, whose places are as those of a scale
      reinterpret_cast<uint8_t*>(
          job.scales)[((uint64_t{expert} * (groups / 4) + group / 4) * places + at) * 4 + group % 4] =
          exponent_of(scale);
  }
}

TOWLINE_DEVICE void run_dispatch_pack(const Job& job, uint32_t block, uint32_t blocks) {
  Control& me = own(job);
  const uint32_t pairs = job.layout.local * job.ranks;
  const uint32_t parts = blocks / pairs > 1 ? blocks / pairs : 1;  // blocks that share a pair's tokens
  for (uint32_t item = block; item < pairs * parts; item += blocks) {
    const uint32_t pair = item / parts;
    const uint32_t expert = pair / job.ranks;
    const uint32_t rank = pair % job.ranks;
    const auto range = static_cast<uint64_t>(reinterpret_cast<const int64_t*>(job.layout_range)[pair]);
    const auto half = static_cast<uint32_t>(me.got[rank] & 1);
    for (uint64_t token = item % parts; token < (range & 0xffffffff); token += parts)
      pack_token(job, job.segment + job.layout.slot_at(half, rank, expert, token), expert,
                 (range >> 32) + token);
  }
  if (last_block(job, blocks)) tell_taken(job, me);
}

}  // namespace towline::collectives::experts

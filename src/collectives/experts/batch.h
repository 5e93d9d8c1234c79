// What dispatch and combine of batches have in common: rows by warps, and the exchange of stages.
#pragma once

#include "collectives/experts/batch_relay.h"
#include "collectives/experts/dispatch.h"

namespace towline::collectives::experts {

inline constexpr uint32_t kWarp = 32;

// A warp moves a row, so that many rows are on their way at once. A model's block is one thread.
struct Share {
  uint32_t lane;
  uint32_t lanes;
  uint32_t warp;  // of the kernel's
  uint32_t warps;
};
TOWLINE_DEVICE Share share_of(uint32_t block, uint32_t blocks) {
  const uint32_t lanes = device::threads() < kWarp ? device::threads() : kWarp;
  const uint32_t of_block = device::threads() / lanes;
  return {device::thread() % lanes, lanes, block * of_block + device::thread() / lanes, blocks * of_block};
}

// Bytes are a multiple of 16. Eight loads of a thread are on their way at once.
TOWLINE_DEVICE void copy_row(const Share& share, uint64_t to, uint64_t from, uint64_t bytes) {
  constexpr uint32_t kUnroll = 8;
  const uint64_t packs = bytes / 16;
  uint64_t i = share.lane;
  for (; i + (kUnroll - 1) * share.lanes < packs; i += kUnroll * share.lanes) {
    device::Pack data[kUnroll];
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kUnroll; ++k) data[k] = device::load_pack(from + (i + k * share.lanes) * 16);
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kUnroll; ++k) device::store_pack(to + (i + k * share.lanes) * 16, data[k]);
  }
  for (; i < packs; i += share.lanes) device::store_pack(to + i * 16, device::load_pack(from + i * 16));
}
// With all bits set: a NaN in every format.
TOWLINE_DEVICE void spoil_row(const Share& share, uint64_t to, uint64_t bytes) {
  for (uint64_t i = share.lane; i < bytes / 16; i += share.lanes)
    device::store_pack(to + i * 16, {{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}});
}

// Of a rank's tokens, those in this round.
TOWLINE_DEVICE uint32_t tokens_in_round(const Batch& batch, uint32_t tokens) {
  if (tokens <= batch.first) return 0;
  const uint32_t left = tokens - batch.first;
  return left < batch.round_tokens ? left : batch.round_tokens;
}
TOWLINE_DEVICE bool in_round(const Batch& batch, int32_t token) {
  return token >= 0 && static_cast<uint32_t>(token) - batch.first < batch.round_tokens;
}
TOWLINE_DEVICE bool goes_to(const Job& job, uint32_t token, uint32_t rank) {
  return reinterpret_cast<const uint8_t*>(job.batch.in_rank)[uint64_t{token} * job.ranks + rank] != 0;
}
TOWLINE_DEVICE uint64_t ranks_of(const Job& job, uint32_t token) {
  uint64_t mask = 0;
  for (uint32_t rank = 0; rank < job.ranks; ++rank)
    mask |= static_cast<uint64_t>(goes_to(job, token, rank)) << rank;
  return mask;
}

// The lowest of a mask's ranks, which goes from it. In a kernel std::countr_zero is 64, whatever it is given: nvcc takes the
// compiler's builtin in it for a constant.
TOWLINE_DEVICE uint32_t take_rank(uint64_t& mask) {
#ifdef __CUDA_ARCH__
  const auto rank = static_cast<uint32_t>(__ffsll(static_cast<long long>(mask)) - 1);
#else
  const auto rank = static_cast<uint32_t>(std::countr_zero(mask));
#endif
  mask &= mask - 1;
  return rank;
}

// Where each rank's rows end, in scratch.rows. All threads.
TOWLINE_DEVICE void read_prefix(const Job& job, Scratch& scratch) {
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    scratch.rows[rank] = static_cast<uint32_t>(reinterpret_cast<const int32_t*>(job.batch.prefix)[rank]);
  device::sync();
}
// The rank that a row is of; job.ranks: none.
TOWLINE_DEVICE uint32_t rank_of_row(const Job& job, const Scratch& scratch, uint32_t row) {
  uint32_t rank = 0;
  while (rank < job.ranks && row >= scratch.rows[rank]) ++rank;
  return rank;
}

// ---- Put

// The half that the next exchange of this rank uses.
TOWLINE_DEVICE uint64_t own_stage(const Job& job, const Control& me) {
  return job.segment + job.batch.stage_at + ((me.staged + 1) & 1) * job.batch.half_bytes;
}

// May this rank write to its stage? Waits until all ranks have read what lies there. If one does not, there is no exchange: what
// it may still read stays as it is.
TOWLINE_DEVICE bool await_readers(const Job& job, Control& me, Scratch& scratch) {
  await_rooms(job, me, scratch);
  bool all = true;
  for (uint32_t rank = 0; rank < job.ranks; ++rank) all = all && scratch.rank[rank] != 0;
  return all;
}

// A rank of another host gets the row at this place of the stage. One thread. A handle that names a token twice marks more rows than a round has:
// these are left out.
TOWLINE_DEVICE void mark_row(const Job& job, Control& me, uint32_t rank, uint64_t place) {
  if (!is_remote(job, me, rank)) return;
  const auto half = static_cast<uint32_t>((me.sent[rank] + 1) & 1);
  const uint64_t entry = add_to(&me.marks[rank], 1);
  if (entry >= job.batch.round_tokens) return;
  device::store_unit<uint32_t>(me.peer[rank] + job.layout.used_at(half, entry), static_cast<uint32_t>(place));
}

// In the last block, all threads: the stage is whole. A block that could not write has masked the rank that kept it from that.
TOWLINE_DEVICE bool is_whole(const Job& job, const Control& me) {
  bool absent = false;
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    absent = absent || is_masked(me, rank) || device::load_relaxed(&me.broken[rank]) != 0;
  return !device::sync_any(absent);
}

// The same threads, in any case: for the next exchange.
TOWLINE_DEVICE void forget_marks(const Job& job, Control& me) {
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    device::store_relaxed(&me.marks[rank], 0);
}

// To the rank's proxy. One thread.
TOWLINE_DEVICE void publish_marks(const Job& job, Control& me, uint32_t rank) {
  const uint64_t half = me.sent[rank] & 1;
  Control& there = peer_control(me, rank);
  device::store_relaxed(&there.marked[half][job.rank],
                        uint64_t{job.batch.way} << 32 | device::load_relaxed(&me.marks[rank]));
  device::store_relaxed(&there.via[half][job.rank], via_of(job, me, rank));
  say_ready(job, me, rank);
}

// The same threads: tells every rank. Proxies hear of relays first.
TOWLINE_DEVICE void publish_stage(const Job& job, Control& me) {
  device::fence();
  device::sync();
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    join_session(me, rank);
    const uint64_t number = ++me.sent[rank];
    const uint32_t relay = relay_of(job, me, job.rank, rank);
    Control& there = peer_control(me, rank);
    device::store_relaxed(&there.shape[number & 1][job.rank],
                          shape_through(job, me, relay, rank) | ((me.staged + 1) & 1));
    device::store_release(&there.returned[number & 1][job.rank],
                          make_flag(me.theirs[rank], number, job.tokens));
    if (is_remote(job, me, rank) && relay == rank) publish_marks(job, me, rank);
  }
  device::sync();
  if (device::thread() == 0) ++me.staged;
  if (job.batch.relays == 0) return;
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    if (relay_of(job, me, job.rank, rank) != rank) publish_marks(job, me, rank);
}

// ---- Await

enum class Arrival : uint32_t {
  kCame,
  kLate,
  kDifferent,
  kNone,  // another rank is named for it
};

// One thread. The first reason stays.
TOWLINE_DEVICE void report_absent(const Job& job, uint32_t rank, Arrival arrival) {
  if (arrival != Arrival::kLate && arrival != Arrival::kDifferent) return;
  uint64_t* const absent = &reinterpret_cast<Report*>(job.batch.report)->absent[rank];
  if (device::load_relaxed(absent) == 0)
    device::store_relaxed(absent, arrival == Arrival::kLate ? Report::kLate : Report::kDifferent);
}

// One thread.
TOWLINE_DEVICE Arrival await_stage(const Job& job, Control& me, uint32_t rank, const Scratch& scratch) {
  me.stage[rank] = 0;
  me.tokens[rank] = 0;
  if (!takes_part(me, rank)) {
    const bool can =
        me.peer[rank] != 0 && !is_masked(me, rank) && device::load_relaxed(&me.broken[rank]) == 0;
    return can ? Arrival::kNone : Arrival::kLate;  // this rank sent it nothing, for another rank's sake
  }
  const auto half = static_cast<uint32_t>((me.got[rank] + 1) & 1);
  const uint64_t* const flag = &from_peer(me, rank).returned[half][rank];
  if (!await_flag(job, me, rank, flag, &scratch.slot[0])) {
    give_up_on(me, rank);
    return Arrival::kLate;
  }
  const uint64_t shape = device::load_relaxed(&from_peer(me, rank).shape[half][rank]);
  const uint32_t relay = relay_of(job, me, rank, job.rank);
  if (relay != job.rank && ((shape & ~uint64_t{1}) == kRowsAreLost || me.peer[relay] == 0)) {
    ++me.got[rank];
    give_up_on(me, relay);
    report_absent(job, relay, Arrival::kLate);
    return Arrival::kNone;
  }
  if ((shape & ~uint64_t{1}) != shape_through(job, me, relay, job.rank)) {
    give_up_on(me, rank);
    return Arrival::kDifferent;
  }
  ++me.got[rank];
  me.stage[rank] = is_remote(job, me, rank)
                       ? me.peer[relay] + job.layout.area_at(stage_half(shape), rank)
                       : me.peer[rank] + job.batch.stage_at + stage_half(shape) * job.batch.half_bytes;
  me.tokens[rank] = flag_count(device::load_relaxed(flag));
  return Arrival::kCame;
}

}  // namespace towline::collectives::experts

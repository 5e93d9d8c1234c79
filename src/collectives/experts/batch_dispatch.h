// Dispatch of a batch: each token once to every rank that has an expert of it, and once to every other host. Kernels of a round:
//
//   put    blocks share the tokens, and put them into this rank's stage; the last block raises the flags
//   await  one block waits for all ranks. In the first round it adds up the counts and tells the host
//   list   a block for each rank lists which tokens of it are for this one, in their order
//   pull   blocks share the rows, and read them from the ranks' stages; the last block tells the ranks that they are read
#pragma once

#include "collectives/experts/batch.h"

namespace towline::collectives::experts {

// ---- Put

// How many rows there are for each rank. The blocks share the tokens of all rounds.
TOWLINE_DEVICE void count_rows(const Job& job, Control& me, Scratch& scratch, uint32_t block,
                               uint32_t blocks) {
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) scratch.rows[rank] = 0;
  device::sync();
  for (uint32_t token = block * device::threads() + device::thread(); token < job.tokens;
       token += blocks * device::threads())
    for (uint32_t rank = 0; rank < job.ranks; ++rank)
      if (goes_to(job, token, rank)) add_in_block(&scratch.rows[rank], 1);
  device::sync();
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    add_to(&me.rows[rank], scratch.rows[rank]);
}

// Each once.
TOWLINE_DEVICE uint64_t relays_of(const Scratch& scratch, uint64_t ranks) {
  uint64_t relays = 0;
  while (ranks != 0) relays |= uint64_t{1} << scratch.routes[take_rank(ranks)];
  return relays;
}

TOWLINE_DEVICE void put_token(const Job& job, Control& me, const Scratch& scratch, const Share& share,
                              uint64_t stage, uint32_t place) {
  const Batch& batch = job.batch;
  const uint64_t token = batch.first + place;
  const uint64_t row = stage + batch.rows_at + place * batch.row_bytes;
  copy_row(share, row, job.x + token * batch.payload, batch.payload);
  for (uint32_t k = share.lane; k < job.topk; k += share.lanes) {
    const uint64_t route = token * job.topk + k;
    device::store_unit<int64_t>(row + batch.routes_in_row() + k * sizeof(int64_t),
                                reinterpret_cast<const int64_t*>(job.topk_idx)[route]);
    device::store_unit<float>(row + batch.weights_in_row(job.topk) + k * sizeof(float),
                              reinterpret_cast<const float*>(job.topk_weights)[route]);
  }
  const auto* const scales = reinterpret_cast<const uint32_t*>(job.scales);
  for (uint32_t i = share.lane; i < batch.scales; i += share.lanes)
    device::store_unit<uint32_t>(row + batch.scales_in_row(job.topk) + i * sizeof(uint32_t),
                                 scales[static_cast<int64_t>(token) * batch.scale_token_stride +
                                        static_cast<int64_t>(i) * batch.scale_stride]);
  if (share.lane != 0) return;
  uint64_t ranks = ranks_of(job, static_cast<uint32_t>(token));
  device::store_unit<uint64_t>(stage + batch.masks_at + place * sizeof(uint64_t), ranks);
  if (job.batch.relays != 0) ranks = relays_of(scratch, ranks);
  while (ranks != 0) mark_row(job, me, take_rank(ranks), place);
}

// In the last block, all threads.
TOWLINE_DEVICE void put_counts(const Job& job, Control& me, uint64_t stage) {
  const uint32_t each = 1 + job.batch.experts;
  const auto* const per_expert = reinterpret_cast<const int32_t*>(job.batch.per_expert);
  for (uint32_t i = device::thread(); i < job.ranks * each; i += device::threads()) {
    const uint32_t rank = i / each;
    const uint32_t which = i % each;
    const auto count = which == 0 ? static_cast<uint32_t>(device::load_relaxed(&me.rows[rank]))
                                  : static_cast<uint32_t>(per_expert[rank * job.batch.experts + which - 1]);
    device::store_unit<uint32_t>(stage + i * sizeof(uint32_t), count);
  }
}

TOWLINE_DEVICE void run_batch_put(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  Control& me = own(job);
  const uint64_t stage = own_stage(job, me);
  const bool counts = job.batch.ticket != 0 && job.batch.first == 0;
  if (await_readers(job, me, scratch)) {
    if (counts) count_rows(job, me, scratch, block, blocks);
    find_relays(job, me, scratch);
    const Share share = share_of(block, blocks);
    for (uint32_t place = share.warp; place < tokens_in_round(job.batch, job.tokens); place += share.warps)
      put_token(job, me, scratch, share, stage, place);
  }
  if (!last_block(job, blocks)) return;
  if (is_whole(job, me)) {
    if (counts) put_counts(job, me, stage);
    publish_stage(job, me);
  }
  forget_marks(job, me);
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    device::store_relaxed(&me.rows[rank], 0);
}

// ---- Await

// The same, of a rank whose counts can't be right. One thread.
TOWLINE_DEVICE void refuse_counts(const Job& job, Control& me, Scratch& scratch, uint32_t rank) {
  scratch.rows[rank] = 0;
  me.stage[rank] = 0;
  give_up_on(me, rank);
  report_absent(job, rank, Arrival::kDifferent);
}

// Adds up what the ranks that came have for this one, and tells the host. A rank has at most as many rows as tokens, and an expert as many
// as these can have routes. All threads.
TOWLINE_DEVICE void total(const Job& job, Control& me, Scratch& scratch) {
  auto* const report = reinterpret_cast<Report*>(job.batch.report);
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    scratch.rows[rank] =
        me.stage[rank] == 0 ? 0 : device::load_unit<uint32_t>(me.stage[rank] + job.batch.count_at(job.rank));
    scratch.rank[rank] = scratch.rows[rank] > me.tokens[rank];
  }
  device::sync();
  for (uint32_t expert = device::thread(); expert < job.batch.experts; expert += device::threads()) {
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < job.ranks; ++rank) {
      if (me.stage[rank] == 0) continue;
      const auto count = device::load_unit<uint32_t>(me.stage[rank] + job.batch.count_at(job.rank) +
                                                     (1 + expert) * sizeof(uint32_t));
      if (count > me.tokens[rank] * kMostBatchTopk) scratch.rank[rank] = 1;
      sum += count;
    }
    device::store_relaxed(&report->per_expert[expert],
                          (sum + job.batch.alignment - 1) / job.batch.alignment * job.batch.alignment);
  }
  device::sync();
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    if (scratch.rank[rank] != 0) refuse_counts(job, me, scratch, rank);
  device::fence();
  device::sync();
  if (device::thread() != 0) return;
  uint64_t received = 0;
  uint32_t most = 0;
  for (uint32_t rank = 0; rank < job.ranks; ++rank) {
    received += scratch.rows[rank];
    most = me.tokens[rank] > most ? static_cast<uint32_t>(me.tokens[rank]) : most;
    reinterpret_cast<int32_t*>(job.batch.prefix)[rank] = static_cast<int32_t>(received);
  }
  device::store_relaxed(&report->received, received);
  device::store_relaxed(&report->most_tokens, most);
  device::store_release(&report->ticket, job.batch.ticket);
}

TOWLINE_DEVICE void run_batch_await(const Job& job, Scratch& scratch) {
  Control& me = own(job);
  if (device::thread() == 0) scratch.slot[0] = 0;  // a stop for await_flag: none
  device::sync();
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads())
    report_absent(job, rank, await_stage(job, me, rank, scratch));
  device::sync();
  if (job.batch.ticket != 0 && job.batch.first == 0) total(job, me, scratch);
}

// ---- List

// One block. Each thread takes tokens that lie together.
TOWLINE_DEVICE void list_tokens(const Job& job, Control& me, Scratch& scratch, uint32_t rank) {
  const Batch& batch = job.batch;
  const auto* const prefix = reinterpret_cast<const int32_t*>(batch.prefix);
  const auto end = static_cast<uint32_t>(prefix[rank]);
  const uint32_t before = batch.first == 0 ? 0 : static_cast<uint32_t>(me.listed[rank]);
  uint32_t at = (rank == 0 ? 0 : static_cast<uint32_t>(prefix[rank - 1])) + before;
  auto* const tokens = reinterpret_cast<int32_t*>(batch.source_tokens);
  if (me.stage[rank] == 0) {
    for (uint32_t row = at + device::thread(); row < end; row += device::threads()) tokens[row] = -1;
    return;
  }
  const uint64_t masks = me.stage[rank] + batch.masks_at;
  const uint32_t places = tokens_in_round(batch, static_cast<uint32_t>(me.tokens[rank]));
  const uint32_t each = (places + device::threads() - 1) / device::threads();
  const uint32_t first = device::thread() * each;
  const uint32_t last = first + each < places ? first + each : places;
  uint32_t count = 0;
  for (uint32_t place = first; place < last; ++place)
    count +=
        static_cast<uint32_t>(device::load_unit<uint64_t>(masks + place * sizeof(uint64_t)) >> job.rank & 1);
  scratch.sums[device::thread()] = count;
  device::sync();
  for (uint32_t thread = 0; thread < device::thread(); ++thread) at += scratch.sums[thread];
  for (uint32_t place = first; place < last; ++place) {
    if ((device::load_unit<uint64_t>(masks + place * sizeof(uint64_t)) >> job.rank & 1) == 0) continue;
    if (at < end) tokens[at] = static_cast<int32_t>(batch.first + place);
    ++at;
  }
  device::sync();
  if (device::thread() != 0) return;
  uint32_t all = before;
  for (uint32_t thread = 0; thread < device::threads(); ++thread) all += scratch.sums[thread];
  me.listed[rank] = all;
}

TOWLINE_DEVICE void run_batch_list(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  for (uint32_t rank = block; rank < job.ranks; rank += blocks) {
    list_tokens(job, own(job), scratch, rank);
    device::sync();
  }
}

// ---- Pull

// Of a token's routes this rank's alone are left, with its own experts' numbers.
TOWLINE_DEVICE void pull_routes(const Job& job, const Share& share, uint64_t from, uint64_t row) {
  const Batch& batch = job.batch;
  const int64_t begin = static_cast<int64_t>(job.rank) * batch.experts;
  for (uint32_t k = share.lane; k < job.topk; k += share.lanes) {
    int64_t expert = -1;
    auto weight = std::bit_cast<float>(0xffffffffu);
    if (from != 0) {
      expert = device::load_unit<int64_t>(from + batch.routes_in_row() + k * sizeof(int64_t)) - begin;
      weight = device::load_unit<float>(from + batch.weights_in_row(job.topk) + k * sizeof(float));
      if (expert < 0 || expert >= batch.experts) {
        expert = -1;
        weight = 0;
      }
    }
    reinterpret_cast<int64_t*>(batch.out_routes)[row * job.topk + k] = expert;
    reinterpret_cast<float*>(batch.out_weights)[row * job.topk + k] = weight;
  }
}

// `from`: 0 for a row that did not come.
TOWLINE_DEVICE void pull_row(const Job& job, const Share& share, uint64_t from, uint64_t row) {
  const Batch& batch = job.batch;
  const uint64_t to = job.out + row * batch.payload;
  if (from != 0)
    copy_row(share, to, from, batch.payload);
  else
    spoil_row(share, to, batch.payload);
  pull_routes(job, share, from, row);
  for (uint32_t i = share.lane; i < batch.scales; i += share.lanes)
    reinterpret_cast<uint32_t*>(batch.out_scales)[row * batch.scales + i] =
        from == 0 ? 0xffffffffu
                  : device::load_unit<uint32_t>(from + batch.scales_in_row(job.topk) + i * sizeof(uint32_t));
}

TOWLINE_DEVICE void run_batch_pull(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  Control& me = own(job);
  const Batch& batch = job.batch;
  read_prefix(job, scratch);
  const Share share = share_of(block, blocks);
  for (uint32_t row = share.warp; row < batch.received; row += share.warps) {
    const uint32_t rank = rank_of_row(job, scratch, row);
    if (rank == job.ranks) continue;
    const int32_t token = reinterpret_cast<const int32_t*>(batch.source_tokens)[row];
    const uint64_t stage = me.stage[rank];
    if (stage == 0 ? token >= 0 && !in_round(batch, token) : !in_round(batch, token)) continue;
    const uint64_t place = static_cast<uint32_t>(token) - batch.first;
    pull_row(job, share, stage == 0 ? 0 : stage + batch.rows_at + place * batch.row_bytes, row);
  }
  if (last_block(job, blocks)) tell_taken(job, me);
}

}  // namespace towline::collectives::experts

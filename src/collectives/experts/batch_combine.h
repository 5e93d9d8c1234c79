// Combine of a batch: each rank's row for a token back to the token's rank, and their sum. Kernels of a round:
//
//   return  blocks share the rows, and put those of the round's tokens into this rank's stage; the last block raises the flags
//   await   the dispatch's
//   sum     blocks share the tokens: each sum is in float32, biases first and then ranks in their order, and is rounded once
#pragma once

#include "collectives/experts/batch.h"
#include "collectives/experts/combine.h"

namespace towline::collectives::experts {

TOWLINE_DEVICE void run_batch_return(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  Control& me = own(job);
  const Batch& batch = job.batch;
  const uint64_t stage = own_stage(job, me);
  if (await_readers(job, me, scratch)) {
    read_prefix(job, scratch);
    const Share share = share_of(block, blocks);
    for (uint32_t row = share.warp; row < batch.received; row += share.warps) {
      const uint32_t rank = rank_of_row(job, scratch, row);
      const int32_t token = reinterpret_cast<const int32_t*>(batch.source_tokens)[row];
      if (rank == job.ranks || !in_round(batch, token)) continue;
      const uint64_t place = static_cast<uint32_t>(token) - batch.first;
      const uint64_t to =
          stage + batch.rows_at + (uint64_t{rank} * batch.round_tokens + place) * batch.row_bytes;
      copy_row(share, to, job.x + uint64_t{row} * batch.payload, batch.payload);
      for (uint32_t k = share.lane; k < job.topk; k += share.lanes)
        device::store_unit<float>(
            to + batch.weights_in_row(0) + k * sizeof(float),
            reinterpret_cast<const float*>(job.topk_weights)[uint64_t{row} * job.topk + k]);
      if (share.lane == 0) mark_row(job, me, rank, place);
    }
  }
  if (!last_block(job, blocks)) return;
  if (is_whole(job, me)) publish_stage(job, me);
  forget_marks(job, me);
}

TOWLINE_DEVICE void add_pack(Sums& sums, const device::Pack& pack) {
  TOWLINE_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    sums.of[2 * i] += low_of(pack.word[i]);
    sums.of[2 * i + 1] += high_of(pack.word[i]);
  }
}

// At `offset` of each rank's row. Four loads of a thread are on their way at once.
TOWLINE_DEVICE void add_rows(Sums& sums, const Scratch& scratch, uint64_t mask, uint64_t offset) {
  constexpr uint32_t kUnroll = 4;
  while (mask != 0) {
    device::Pack packs[kUnroll] = {};
    uint32_t count = 0;
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kUnroll; ++k) {
      if (mask == 0) continue;
      packs[k] = device::load_pack(scratch.from[take_rank(mask)] + offset);
      ++count;
    }
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kUnroll; ++k)
      if (k < count) add_pack(sums, packs[k]);
  }
}

// `mask`: the ranks that have the token. `offset`: of the token's row in each rank's rows for this one.
TOWLINE_DEVICE void sum_token(const Job& job, const Share& share, const Scratch& scratch, uint64_t token,
                              uint64_t mask, uint64_t offset) {
  const Batch& batch = job.batch;
  for (uint64_t at = uint64_t{16} * share.lane; at < batch.payload; at += uint64_t{16} * share.lanes) {
    Sums sums = {};
    for (const uint64_t bias : batch.bias)
      if (bias != 0) add_pack(sums, device::load_pack(bias + token * batch.payload + at));
    add_rows(sums, scratch, mask, offset + at);
    device::store_pack(job.out + token * batch.payload + at, rounded(sums));
  }
  for (uint32_t k = share.lane; k < job.topk; k += share.lanes) {
    float sum = 0;
    for (uint64_t left = mask; left != 0;)
      sum += device::load_unit<float>(scratch.from[take_rank(left)] + offset + batch.weights_in_row(0) +
                                      k * sizeof(float));
    reinterpret_cast<float*>(batch.out_weights)[token * job.topk + k] = sum;
  }
}

TOWLINE_DEVICE void spoil_token(const Job& job, const Share& share, uint64_t token) {
  spoil_row(share, job.out + token * job.batch.payload, job.batch.payload);
  for (uint32_t k = share.lane; k < job.topk; k += share.lanes)
    reinterpret_cast<uint32_t*>(job.batch.out_weights)[token * job.topk + k] = 0xffffffffu;
}

TOWLINE_DEVICE void run_batch_sum(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  Control& me = own(job);
  const Batch& batch = job.batch;
  for (uint32_t rank = device::thread(); rank < job.ranks; rank += device::threads()) {
    const uint64_t before =
        is_remote(job, me, rank) ? 0 : uint64_t{job.rank} * batch.round_tokens * batch.row_bytes;
    scratch.from[rank] = me.stage[rank] == 0 ? 0 : me.stage[rank] + batch.rows_at + before;
  }
  device::sync();
  uint64_t missing = 0;
  for (uint32_t rank = 0; rank < job.ranks; ++rank)
    missing |= static_cast<uint64_t>(scratch.from[rank] == 0) << rank;
  const Share share = share_of(block, blocks);
  for (uint32_t place = share.warp; place < tokens_in_round(batch, job.tokens); place += share.warps) {
    const uint32_t token = batch.first + place;
    const uint64_t mask = ranks_of(job, token);
    if ((mask & missing) == 0)
      sum_token(job, share, scratch, token, mask, place * batch.row_bytes);
    else
      spoil_token(job, share, token);
  }
  if (last_block(job, blocks)) tell_taken(job, me);
}

}  // namespace towline::collectives::experts

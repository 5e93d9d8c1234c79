// Batches for prefill: what their kernels and the host share. docs/experts.md explains the whole.
//
// Ranks pull. A rank puts its tokens, or its results, into one half of its own memory, the stage; the others read there what is
// for them. Of another rank's memory a rank writes words alone: those of pairs of ranks, as exchanges of small batches do (job.h). An exchange is
// a round: as many tokens of each rank as a half has room for.
//
// A rank of another host can't be read. So each rank has a mirror of both halves of such a rank's stage, which that rank's proxy fills
// with the rows that are for this one (proxy.h) or, of a dispatch, for any rank of the host, if this one is the relay (batch_relay.h). The kernels that read are the same. A member that is open to other hosts
// (Member::open_to_hosts) cuts its memory for this: what are slots in small exchanges are the mirrors, and the results are the stage.
//
// A stage of a dispatch:
//
//   counts  uint32 [ranks][1 + experts]: for each rank its rows and its experts' tokens. In the first round, where counts are asked for
//   masks   uint64 [round_tokens]: a bit for each rank that gets the token
//   rows    [round_tokens]: payload, routes (int64), weights (float), scales (four bytes each)
//
// A stage of a combine: rows [ranks][round_tokens], by the token's rank and its number there: payload, weights. A mirror has
// the rows of the rank that reads it alone.
#pragma once

#include <cstdint>

namespace towline::collectives::experts {

inline constexpr uint32_t kMostBatchTopk = 128;
inline constexpr uint32_t kMostBatchExperts = 1024;  // of a rank
inline constexpr uint32_t kMostBatchScales = 1024;   // of a token

// What the host hears of batches, in pinned memory.
struct Report {
  // Of each rank, why an exchange had to do without it; until it is unmasked.
  static constexpr uint64_t kLate = 1;       // it did not come, or is masked
  static constexpr uint64_t kDifferent = 2;  // it came to another exchange, or with another shape
  uint64_t absent[64];
  uint64_t reads[64];  // of Command::kAwaitReaders: 1 for each rank that may still read
  uint64_t ticket;     // of the dispatch whose totals these are
  uint64_t received;
  uint64_t most_tokens;  // of any rank
  uint64_t per_expert[kMostBatchExperts];
};

struct Batch {
  uint64_t stage_at;    // of both halves, in the segment
  uint64_t half_bytes;  // of a stage
  uint64_t masks_at;    // in a stage
  uint64_t rows_at;
  uint64_t row_bytes;  // of a row with what goes with it
  uint64_t shape;      // that all ranks must give: not 0, with bit 0 free for the half
  uint64_t in_rank;    // bool [tokens][ranks]
  uint64_t per_expert;
  uint64_t prefix;         // int32 [ranks]: rows of the ranks up to this one
  uint64_t source_tokens;  // int32 [received]: each row's number at its rank
  uint64_t bias[2];
  uint64_t out_scales;
  uint64_t out_routes;
  uint64_t out_weights;
  uint64_t report;  // as the GPU has it; 0: none
  uint64_t ticket;  // 0: counts are known
  int64_t scale_token_stride;
  int64_t scale_stride;
  uint32_t payload;  // bytes of a token
  uint32_t round_tokens;
  uint32_t first;  // token of this round
  uint32_t scales;
  uint32_t experts;  // of a rank
  uint32_t alignment;
  uint32_t received;
  uint32_t way;     // of rows to ranks of other hosts: Proxy::prepare()
  uint32_t relays;  // 1: ranks of another host get a token once, together (batch_relay.h)

  [[nodiscard]] constexpr uint64_t routes_in_row() const { return payload; }
  [[nodiscard]] constexpr uint64_t weights_in_row(uint32_t routes) const {
    return payload + routes * sizeof(int64_t);
  }
  [[nodiscard]] constexpr uint64_t scales_in_row(uint32_t topk) const {
    return weights_in_row(topk) + topk * sizeof(float);
  }
  [[nodiscard]] constexpr uint64_t count_at(uint32_t rank) const {
    return uint64_t{rank} * (1 + experts) * sizeof(uint32_t);
  }
};

}  // namespace towline::collectives::experts

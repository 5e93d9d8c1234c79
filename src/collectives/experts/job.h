// The exchange of experts' tokens: what ranks share, and the argument of its kernels. Shared by host and
// device.
//
// A rank has `local` experts; expert e belongs to rank e / local. Dispatch sends each token to the ranks of its top-k experts;
// combine sends the experts' results back, and sums them with the token's weights. docs/experts.md explains the whole.
//
// A rank's segment, which every connected rank maps:
//
//   Control      words of pairs: some are written by the peer, some are the rank's own
//   counts       [2][capacity][local]: by each source, how many tokens it sent to each expert
//   routed       [capacity * local]: the rank's own tally while it sends
//   slots        [capacity][2][local][max_tokens]: one message each, by the source rank
//   results      [local][capacity * max_tokens][hidden]: the rank's own buffer for combine without a copy
//
// A slot of a dispatch holds 16 bytes with the token's number at its source, the payload, and the scales if it is FP8. A slot of
// a combine is indexed by the token's number; its first 16 bytes are unused.
//
// Sessions. Each pair of ranks counts its exchanges by itself, in each direction (`sent`, `got`), so that ranks can join and leave
// while others go on. Both sides begin at 0 when they open a session. The receiver gives the sender a nonce (`opened`, in
// the sender's memory), and the sender repeats it in every flag. A nonce is a member's tag and its count of sessions, so that a rank
// that took another's place is told from it. So a flag of an earlier session, of whatever age, never
// matches. The first exchange of a session waits for the other side to open it, too. A rank that opens one without having used the one
// before says so in the nonce: then the other side can't tell the two, and both wait in the first exchange until each has heard the
// other's nonce. A pair that missed anything (a
// timeout, an exchange while one masked the other) is `broken`: only a new session, which both open, makes it whole.
//
// Ranks of other hosts. A kernel finds two pieces of pinned host memory in the place of what it can't map: an image of the peer's segment, to
// which it writes, and words laid out as this segment's, which the peer's flags come to. proxy.h moves both. In the image, `ready` says that
// the counts and slots of an exchange are whole, and `used` which slots a combine has filled.
//
// Two buffers. Exchange n of a pair uses half n % 2. A rank sends exchange n only when the peer has taken n - 2 (`taken`). Where a
// source's halves lie depends on the memory's size alone, so that exchanges of different shapes do not touch one another.
#pragma once

#include <cstdint>

#include "collectives/experts/batch_job.h"
#include "towline/device/symmetric.cuh"

namespace towline::collectives::experts {

inline constexpr uint32_t kMostRanks = 64;  // a mask of ranks has as many bits
inline constexpr uint32_t kMostTopk = 32;
inline constexpr uint32_t kMostHidden = 16384;
inline constexpr uint32_t kThreads = 512;
inline constexpr uint32_t kHeaderBytes = 16;
inline constexpr uint32_t kScaled = 128;  // elements that share a scale
inline constexpr uint32_t kCountBits = 20;
inline constexpr uint32_t kWholeSlot = 0x80000000u;  // in `used`
inline constexpr uint32_t kNoSlot = 0x7fffffffu;

enum Format : uint32_t { kBfloat16 = 0, kFp8 = 1, kRoundScale = 2, kUe8m0 = 4, kLogFmt = 8 };

struct Control {
  // Written by the peer of that number.
  uint64_t opened[kMostRanks];    // the nonce that flags for it repeat; << 32 this rank's that it has heard
  uint64_t taken[kMostRanks];     // this rank's nonce << 32 | the exchanges that the peer has taken
  uint64_t shape[2][kMostRanks];  // of the exchange in that half
  uint64_t returned[2][kMostRanks];  // the flag of a combine
  uint64_t met[kMostRanks];          // this rank's nonce << 32 | barriers that the peer came to
  uint64_t ready[2][kMostRanks];     // in images alone: the exchange in that half is whole
  uint64_t marked[2][kMostRanks];    // the same, of batches: its way << 32 | how many rows the peer gets
  uint64_t via[2][kMostRanks];       // the same: how they get to where the peer reads them, via_of()
  // The rank's own.
  uint64_t peer[kMostRanks];    // its segment, or the image, as this rank reaches it; 0: not connected
  uint64_t slots[kMostRanks];   // the same, from which slots are found by slot_at()
  uint64_t from[kMostRanks];    // where its words come to: this segment, or pinned memory laid out like it
  uint64_t tag[kMostRanks];     // of the member that is connected, in all nonces that it gives
  uint64_t host[kMostRanks];    // the same on all ranks that can map one another's memory
  uint64_t mine[kMostRanks];    // the nonce that this rank gave it
  uint64_t theirs[kMostRanks];  // the nonce that it gave, in this session or, if fresh, in the one before
  uint64_t fresh[kMostRanks];   // its nonce of this session is not known yet
  uint64_t sent[kMostRanks];
  uint64_t got[kMostRanks];
  uint64_t barriers[kMostRanks];
  uint64_t masked[kMostRanks];
  uint64_t broken[kMostRanks];
  uint64_t usable[kMostRanks];  // its results of the combine that is received
  // Of batches (batch_job.h); the rank's own, too.
  uint64_t
      stage[kMostRanks];  // where the rank's half of the exchange that is received lies; 0: it did not come
  uint64_t tokens[kMostRanks];  // how many the rank has, in all rounds
  uint64_t rows[kMostRanks];    // a tally while tokens are put
  uint64_t marks[kMostRanks];   // the same, of rows that are marked for a rank of another host
  uint64_t listed[kMostRanks];  // how many of the rank's tokens are listed
  uint64_t staged;              // exchanges that were put; the last one's parity is its half
  uint64_t arrived;             // blocks of the running kernel that are through
  uint64_t dropped;             // routes to experts that do not exist
};

// Where parts of a segment lie.
struct Layout {
  uint32_t capacity = 0;    // ranks
  uint32_t local = 0;       // experts of a rank
  uint64_t area_bytes = 0;  // a half of a source's slots
  // Of an exchange's shape:
  uint64_t slot_bytes = 0;
  uint64_t max_tokens = 0;

  static constexpr uint64_t slot_bytes_of(uint64_t hidden) { return kHeaderBytes + 2 * hidden; }
  // That an exchange uses of a slot. With LogFMT: of a slot that is not marked with kWholeSlot. They have room for a token in which an
  // eighth of the groups are not cast.
  static constexpr uint64_t used_bytes_of(uint64_t hidden, uint32_t format) {
    if ((format & kFp8) != 0) return kHeaderBytes + hidden + hidden / kScaled * sizeof(float);
    return (format & kLogFmt) != 0 ? kHeaderBytes + hidden * 11 / 8 : slot_bytes_of(hidden);
  }
  [[nodiscard]] constexpr uint64_t counts_at() const { return (sizeof(Control) + 255) / 256 * 256; }
  [[nodiscard]] constexpr uint64_t routed_at() const {
    return counts_at() + uint64_t{2} * capacity * local * sizeof(uint64_t);
  }
  [[nodiscard]] constexpr uint64_t slots_at() const {
    return (routed_at() + uint64_t{capacity} * local * sizeof(uint64_t) + 255) / 256 * 256;
  }
  [[nodiscard]] constexpr uint64_t results_at() const { return slots_at() + 2 * capacity * area_bytes; }
  // The area that this shape needs. A rank's results fit in `capacity` of them, as they are smaller than slots.
  [[nodiscard]] constexpr uint64_t needed_bytes() const {
    return (uint64_t{local} * max_tokens * slot_bytes + 255) / 256 * 256;
  }

  // In an image, whose slots are elsewhere: for each half a slot's number, uint32, in the order of experts and results; with
  // kWholeSlot if all of its bytes are used. Of a batch: the places of the rows that the peer gets, in any order.
  [[nodiscard]] constexpr uint64_t used_entries() const { return area_bytes / slot_bytes_of(kScaled); }
  [[nodiscard]] constexpr uint64_t used_at(uint32_t half, uint64_t entry) const {
    return slots_at() + (half * used_entries() + entry) * sizeof(uint32_t);
  }

  [[nodiscard]] constexpr uint64_t count_at(uint32_t half, uint32_t source, uint32_t expert) const {
    return counts_at() + ((uint64_t{half} * capacity + source) * local + expert) * sizeof(uint64_t);
  }
  [[nodiscard]] constexpr uint64_t area_at(uint32_t half, uint32_t source) const {
    return slots_at() + (uint64_t{2} * source + half) * area_bytes;
  }
  [[nodiscard]] constexpr uint64_t slot_at(uint32_t half, uint32_t source, uint32_t expert,
                                           uint64_t slot) const {
    return area_at(half, source) + (uint64_t{expert} * max_tokens + slot) * slot_bytes;
  }
};

enum class Command : uint32_t {
  kMask = 0,
  kUnmask = 1,
  kClean = 2,  // unmasks those that are connected, and masks the others
  kQuery = 3,  // writes `masked` to `out`, as int32
  // `x`, `scales`, `out` and `topk_idx` are its `peer`, `slots`, `from` and `host`. It is masked.
  kConnect = 4,
  kDisconnect = 5,
  kAwaitReaders = 6,  // until no rank of the mask `x` reads what this one put in batches: Report::reads
};

struct Job {
  uint64_t segment;  // this rank's
  uint64_t x;
  uint64_t topk_idx;      // int64
  uint64_t topk_weights;  // float
  uint64_t out;
  uint64_t scales;
  uint64_t src_info;      // int32 [local][ranks * max_tokens]
  uint64_t layout_range;  // int64 [local][ranks]: begin << 32 | count
  uint64_t count;         // int32 [local]
  uint64_t stats;         // int32 [local], added to; 0: none
  uint64_t wait_ns;       // int64 [ranks], added to; 0: none
  uint64_t timeout_ns;
  Layout layout;
  uint32_t rank;
  uint32_t ranks;  // that this exchange is among: the first ones
  uint32_t tokens;
  uint32_t hidden;
  uint32_t topk;
  uint32_t format;
  uint32_t peer;
  Command command;
  uint32_t tag;       // this member's
  uint32_t peer_tag;  // kConnect
  Batch batch;
};
static_assert(sizeof(Job) <= 4096);
static_assert(sizeof(Report::absent) == sizeof(Control::masked));

// What threads of a block share.
struct Scratch {
  uint32_t rank[kMostRanks];    // a verdict on each
  uint32_t routes[kMostRanks];  // to each; of batches: find_relays()
  uint32_t slot[kMostTopk];
  uint32_t expert[kMostTopk];
  uint64_t to[kMostTopk];
  float largest[kMostHidden / 16];
  uint64_t from[kMostRanks];  // of batches
  uint32_t rows[kMostRanks];
  uint32_t sums[kThreads];
  uint32_t range[kMostHidden / 16];           // LogFMT: of units
  uint32_t cast[kMostHidden / kScaled / 32];  // a bit for each group
};

}  // namespace towline::collectives::experts

// The arguments of a kernel for one operation, and the layout of the memory that ranks share. Shared by host and device.
#pragma once

#include <cstdint>

#include "towline/device/symmetric.cuh"

namespace towline::collectives::gpu {

using device::kMaxRanks;

inline constexpr uint32_t kThreads = 512;
inline constexpr uint32_t kMaxBlocks = 128;

// The smallest operations: data and its mark in one store.
inline constexpr uint32_t kMarkedSlots = 512;  // that a block fills first; 16 bytes each, of which 8 are data
inline constexpr uint32_t kMarkedRanks = 8;
inline constexpr uint32_t kMostParts = 8;                         // of a row that is normalised
inline constexpr uint32_t kRowSums = kMostParts * kThreads / 32;  // of their warps
inline constexpr uint32_t kMarkedTurns = 4;                       // an operation takes one or two
constexpr uint32_t marked_blocks(uint32_t size) { return size <= 4 ? 64 : 32; }
// The most slots of a block. Two ranks lose nothing by it: their bytes go once whichever way they take.
constexpr uint32_t marked_slots(uint32_t size) { return size <= 2 ? 2 * kMarkedSlots : kMarkedSlots; }
// The bytes that so many blocks carry from one rank to another.
constexpr uint64_t marked_capacity(uint32_t blocks, uint32_t size) {
  return uint64_t{blocks} * marked_slots(size) * 8;
}

// Larger ones: lines of 128 bytes, of which 120 are data and 8 a mark (lines.h).
inline constexpr uint64_t kLineBytes = 120;
// The most lines of a block.
constexpr uint32_t most_lines(uint32_t size) { return size <= 2 ? 288 : size <= 4 ? 144 : 72; }
constexpr uint64_t lines_capacity(uint32_t blocks, uint32_t size) {
  return uint64_t{blocks} * most_lines(size) * kLineBytes;
}

// Staging: a block's own, two halves and room for results; or what others store, twice for each of three turns.
inline constexpr uint64_t kChunk = 64 << 10;
inline constexpr uint32_t kPushedTurns = 3;
inline constexpr uint32_t kStages = 2 * kPushedTurns;
// The bytes that one rank stores for another in a turn of a block.
constexpr uint64_t pushed_slot_bytes(uint32_t size) { return kChunk / size / 256 * 256; }
// Messages: chunks on their way from one rank to another.
inline constexpr uint32_t kRing = 4;

enum class Way : uint32_t {
  kBarrier = 0,
  kMarked = 1,     // all_reduce, all_gather: every rank stores into every other's slots
  kDirect = 2,     // ranks of one process and GPU read one another's inputs
  kTwoShot = 3,    // all_reduce so: each rank reduces a part and writes it to all
  kStaged = 4,     // through staging memory, in rounds
  kStagedTwo = 5,  // all_reduce so, reducing a part each
  kSend = 6,
  kReceive = 7,
  kTell = 8,  // break, or leave
  // Windows: in[0] to out[0]; the word in[0] counts up; the word in[0] is awaited, in[1] counts those that were.
  kMove = 9,
  kSignal = 10,
  kAwait = 11,
  // Between GPUs.
  kMarkedTwo = 12,  // all_reduce: marked stores of inputs, then of results
  kPushed = 13,     // every rank stores into every other's staging memory, in rounds
  kPushedTwo = 14,  // all_reduce so, reducing a part each
  // all_reduce, addition and RMSNorm (norm.h): the last of them of this rank's own memory.
  kMarkedNorm = 15,
  kDirectNorm = 16,
  kNorm = 17,
  // Hops (hop_operations.h).
  kPost = 18,
  kMarkedParts = 19,  // reduce_scatter, all_to_all: as kMarked, with a part for each rank
};

// Hops that wait for a processor: at most so many.
inline constexpr uint32_t kHopRing = 4;
inline constexpr uint32_t kHopWords = 60;

// Ranks compare this, and the message of a failure names it.
struct Mark {
  uint64_t number;
  uint64_t count;
  uint64_t digest;  // of parts' counts
  uint64_t tag;
  uint32_t op;
  uint32_t datatype;
  uint32_t reduction;
  int32_t root;
};
inline constexpr uint32_t kMarkWords = sizeof(Mark) / sizeof(uint64_t);
inline constexpr uint32_t kUnknownOp = UINT32_MAX;  // of a peer's mark that could not be read

// Digests everything but the number. Never 0.
constexpr uint32_t digest_of(const Mark& mark) {
  const uint64_t words[] = {mark.count,
                            mark.digest,
                            mark.tag,
                            mark.op,
                            mark.datatype,
                            mark.reduction,
                            static_cast<uint64_t>(mark.root)};
  uint64_t digest = 0xcbf29ce484222325;
  for (const uint64_t word : words) {
    digest = (digest ^ word) * 0x100000001b3;
    digest ^= digest >> 29;
  }
  const auto folded = static_cast<uint32_t>(digest ^ digest >> 32);
  return folded == 0 ? 1 : folded;
}

enum class Failure : uint32_t {
  kNone = 0,
  kTimedOut = 1,
  kMismatch = 2,
  kBytes = 3,    // the parts of an all_to_all_v don't fit
  kAborted = 4,  // by the host of `rank`
  kLeft = 5,     // `peer` left
  kLost = 6,     // `peer`'s process is gone
};

// The failure of an operation: the same on every rank that was told.
struct Report {
  uint64_t state;  // 1: there is one
  uint32_t failure;
  uint32_t rank;  // that noticed
  uint32_t peer;
  uint32_t reserved;
  uint64_t sent;  // kBytes
  uint64_t expected;
  Mark mine;
  Mark theirs;
};

// Words of the host to kernels in progress, in host memory.
struct Orders {
  uint64_t stop;  // a Failure; 0: none
  uint64_t peer;
  uint64_t rank;
};

// A rank's segment. Words are this rank's own unless they say who writes them.
struct Control {
  uint64_t broken;    // any rank, after `told`
  uint64_t claimed;   // the first to report here
  uint64_t telling;   // the first to write `told`
  uint64_t stopping;  // a thread that waited has stopped, and will say why
  uint64_t reserved[4];
  Report told;
  uint64_t current[kMarkWords];  // the mark of the collective in progress; others read it at any time
  uint64_t left[kMaxRanks];      // by the rank that left
  // Messages: chunks that came, by their sender; chunks that were taken, by their receiver; own counts of both.
  uint64_t filled[kMaxRanks];
  uint64_t drained[kMaxRanks];
  uint64_t sent[kMaxRanks];
  uint64_t received[kMaxRanks];
  uint64_t ring_digest[kMaxRanks][kRing];  // by the sender: of the message that a chunk belongs to
  Mark ring_mark[kMaxRanks][kRing];        // likewise, in the sender's own segment: the mark
  uint32_t epoch[kMaxBlocks];              // of signals
  uint32_t marked[kMaxBlocks];             // operations with marked stores
  // By the rank and block that signal: epoch and digest of the operation.
  uint64_t signal[kMaxRanks][kMaxBlocks];
  // Three words that go with it, each in 16 bytes with its marks (store_marked). They take turns, since a rank may be
  // one signal ahead.
  alignas(16) uint64_t words[2][kMaxRanks][kMaxBlocks][6];
  alignas(128) uint64_t row_sums[marked_blocks(2)][kRowSums];  // by the block that reads it (row_sum.h)
};
inline constexpr uint64_t kMarkedAt = 320 << 10;
static_assert(sizeof(Control) <= kMarkedAt);

constexpr uint64_t marked_bytes(uint32_t size) {
  return uint64_t{kMarkedTurns} * marked_blocks(size) * (size < kMarkedRanks ? size : kMarkedRanks) *
         marked_slots(size) * 16;
}
constexpr uint64_t lines_at(uint32_t size) { return kMarkedAt + marked_bytes(size); }
constexpr uint64_t lines_bytes(uint32_t size) {
  return uint64_t{kMarkedTurns} * marked_blocks(size) * (size < kMarkedRanks ? size : kMarkedRanks) *
         most_lines(size) * 128;
}
constexpr uint64_t staging_at(uint32_t size) { return lines_at(size) + lines_bytes(size); }
constexpr uint64_t ring_at(uint32_t size) {
  return staging_at(size) + uint64_t{kStages} * kMaxBlocks * kChunk;
}
constexpr uint64_t segment_bytes(uint32_t size) { return ring_at(size) + uint64_t{size} * kRing * kChunk; }

struct Job {
  uint64_t segment[kMaxRanks];  // of each rank, as this rank reaches it
  uint64_t report[kMaxRanks];   // of each rank's host; 0: of another process
  // in: this rank's data for each rank. out: the places for each rank's data for this one. kPost: the hop's words.
  uint64_t in[kMaxRanks];
  uint64_t in_bytes[kMaxRanks];
  uint64_t out[kMaxRanks];
  uint64_t out_bytes[kMaxRanks];
  Mark mark;
  double factor;    // PREMUL_SUM
  uint64_t orders;  // the host's Orders
  uint64_t timeout_ns;
  uint64_t bytes;  // of a part, where all are as large; all_reduce: of all; kAwait: with out[0], nanoseconds
  // kPushed: bytes of a part that a block moves in a round; kPushedTwo: of all parts; with marks: slots, or lines, of a block
  uint64_t slot;
  Way way;
  uint32_t rank;
  uint32_t size;
  uint32_t digest;  // of `mark` but its number; not 0
  uint32_t reduces;
  uint32_t shared;    // the same bytes for every rank
  uint32_t receives;  // kDirect, kStaged: this rank has output
  uint32_t peer;      // messages; kTell: the failure
  uint32_t compare;   // parts' bytes are compared
  uint32_t together;  // all ranks are on one GPU
  // Norms only. 0: no residual, no weight. kPost: the word that counts posts, and their entries.
  uint64_t residual;
  uint64_t weight;
  uint64_t rows;
  uint64_t width;  // elements of a row
  float epsilon;
  float inverse_width;
  uint32_t parts;      // kMarkedNorm: the blocks of a row
  uint32_t clustered;  // which are a cluster
};
static_assert(sizeof(Job) <= 4096);
static_assert(kHopWords <= 4 * kMaxRanks);

}  // namespace towline::collectives::gpu

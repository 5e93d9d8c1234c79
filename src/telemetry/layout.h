// The layout of counters in shared memory, for the process that counts and for those that read. A file is a header,
// then max_series slots of the same size. Versioned: a reader refuses a version that it does not know.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/sync/spin.h"
#include "telemetry/histogram.h"

namespace towline::counters {

inline constexpr uint64_t kMagic = 0x31304e544e574f54;  // "TOWNTN01" in memory order
inline constexpr uint32_t kVersion = 2;
inline constexpr char kFilePrefix[] = "towline-counters:";

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr uint32_t kShards = 8;
inline constexpr uint32_t kMostSeries = 1 << 16;
inline constexpr std::size_t kErrorCodes = 32;  // by -status; larger ones count as the last
inline constexpr std::size_t kAgentNameBytes = 128;
inline constexpr std::size_t kPeerNameBytes = 96;
inline constexpr std::size_t kBackendNameBytes = 24;

// Names are zero-terminated and cut to fit.
struct FileHeader {
  std::atomic<uint64_t> magic;  // stored last
  uint32_t version;
  uint32_t header_bytes;
  uint32_t slot_bytes;
  uint32_t max_series;
  uint32_t shards;
  uint32_t latency_buckets;
  uint64_t incarnation_hi;
  uint64_t incarnation_lo;
  uint64_t started_realtime_ns;       // CLOCK_REALTIME
  uint64_t process_start_time;        // clock ticks since boot, see base/host_identity.h
  uint32_t pid;                       // in the counting process's own pid namespace
  std::atomic<uint32_t> used_series;  // slots below are filled in; released after their names are written
  std::atomic<uint64_t> overflowed_series;  // how often "other" was given out for want of a slot
  char agent[kAgentNameBytes];
};
static_assert(sizeof(FileHeader) <= kPageBytes);

struct alignas(kNoSharingBytes) Shard {
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> transfers;
  std::atomic<uint64_t> blocks;
  std::atomic<uint64_t> notices;
  std::atomic<uint64_t> served_bytes;
  std::atomic<uint64_t> latency_sum_ns;
  std::atomic<uint64_t> latency_max_ns;
  std::atomic<uint64_t> errors[kErrorCodes];
  std::atomic<uint64_t> latency[kLatencyBuckets];
};

struct alignas(kNoSharingBytes) Slot {
  uint32_t direction;  // 0 tx, 1 rx
  char peer[kPeerNameBytes];
  char backend[kBackendNameBytes];
  Shard shards[kShards];
};

constexpr uint64_t file_bytes(uint32_t max_series) noexcept {
  const uint64_t bytes = kPageBytes + uint64_t{max_series} * sizeof(Slot);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace towline::counters

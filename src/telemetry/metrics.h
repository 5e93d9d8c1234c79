// An agent's counters, kept in shared memory from the start: `towline metrics` or any process of the same
// user reads them while they change, without a question asked and also after the agent hangs. Others can't
// write them.
//
// A series counts what went to (tx) or came from (rx) one peer by one backend. Adding takes no lock and
// allocates nothing; threads that use different shards share no cache line.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>

#include "base/id.h"
#include "base/os/memfd.h"
#include "telemetry/layout.h"
#include "towline/status.h"

namespace towline {

enum class Direction : uint32_t { kTx = 0, kRx = 1 };

// Shards below kSharedShard are each written by one thread at a time (a lane's owner); kSharedShard by any.
inline constexpr uint32_t kSharedShard = counters::kShards - 1;

// The shard for the n-th lane: lanes beyond the exclusive ones meet in the shared one.
constexpr uint32_t shard_of_lane(uint32_t lane) noexcept { return lane < kSharedShard ? lane : kSharedShard; }

// Owned by Metrics. shard < counters::kShards; larger ones count as kSharedShard.
class Series {
 public:
  explicit Series(counters::Slot& slot) noexcept : slot_(&slot) {}

  // latency_ns 0: not measured, stays out of the histogram.
  void add_transfer(uint32_t shard, uint64_t bytes, uint64_t blocks, uint64_t latency_ns) noexcept {
    counters::Shard& to = slot_->shards[shard_index(shard)];
    const bool shared = shard >= kSharedShard;
    add(to.bytes, bytes, shared);
    add(to.transfers, 1, shared);
    add(to.blocks, blocks, shared);
    if (latency_ns != 0) add_latency(to, latency_ns, shared);
  }
  // Many at once, none of them measured; bytes and blocks are of all.
  void add_transfers(uint32_t shard, uint64_t transfers, uint64_t bytes, uint64_t blocks) noexcept {
    counters::Shard& to = slot_->shards[shard_index(shard)];
    const bool shared = shard >= kSharedShard;
    add(to.bytes, bytes, shared);
    add(to.transfers, transfers, shared);
    add(to.blocks, blocks, shared);
  }
  void add_notice(uint32_t shard, uint64_t count = 1) noexcept {
    add(slot_->shards[shard_index(shard)].notices, count, shard >= kSharedShard);
  }
  // Moved by the peer's own transfers, as far as this side takes part in them.
  void add_served(uint32_t shard, uint64_t bytes) noexcept {
    add(slot_->shards[shard_index(shard)].served_bytes, bytes, shard >= kSharedShard);
  }
  // status is an error; others are not counted.
  void add_error(uint32_t shard, Status status) noexcept {
    if (!is_error(status)) return;
    const uint64_t code = 0 - static_cast<uint64_t>(static_cast<int32_t>(status));
    add(slot_->shards[shard_index(shard)]
            .errors[code < counters::kErrorCodes ? code : counters::kErrorCodes - 1],
        1, shard >= kSharedShard);
  }

 private:
  static constexpr uint32_t shard_index(uint32_t shard) noexcept { return shard_of_lane(shard); }

  static void add(std::atomic<uint64_t>& counter, uint64_t amount, bool shared) noexcept {
    if (shared) {
      counter.fetch_add(amount, std::memory_order_relaxed);
    } else {  // one writer: no locked instruction needed
      counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
    }
  }

  static void add_latency(counters::Shard& to, uint64_t latency_ns, bool shared) noexcept {
    add(to.latency[latency_bucket(latency_ns)], 1, shared);
    add(to.latency_sum_ns, latency_ns, shared);
    uint64_t max = to.latency_max_ns.load(std::memory_order_relaxed);
    while (max < latency_ns &&
           !to.latency_max_ns.compare_exchange_weak(max, latency_ns, std::memory_order_relaxed)) {
    }
  }

  counters::Slot* slot_;
};

struct MetricsOptions {
  uint32_t max_series =
      512;  // 13 KiB of shared memory each once used; at least 3, at most counters::kMostSeries
};

// The peer that counts everything of peers that the application did not ask for, since names cost nothing.
inline constexpr std::string_view kStrangersName = "strangers";

class Metrics {
 public:
  // Throws Error when the shared memory can't be made.
  Metrics(std::string_view agent_name, const Id& incarnation, const MetricsOptions& options = {});
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Any thread; control path: takes a lock and may allocate. The same arguments give the same series; it
  // lives as long as this. Never null: when all are taken, the answer is the direction's series of peer
  // "other".
  Series* series(std::string_view peer, std::string_view backend, Direction direction);

  // For snapshot.h.
  const Mapping& mapping() const noexcept { return mapping_; }
  int fd() const noexcept { return fd_.get(); }

 private:
  counters::FileHeader& header() noexcept;
  counters::Slot& slot(uint32_t index) noexcept;
  Series* add_series(std::string_view peer, std::string_view backend, Direction direction);

  UniqueFd fd_;  // stays open: that is how other processes find it
  Mapping mapping_;
  uint32_t max_series_;

  std::mutex mutex_;
  std::deque<Series> series_;
  std::map<std::tuple<std::string, std::string, Direction>, Series*, std::less<>> by_name_;
};

}  // namespace towline

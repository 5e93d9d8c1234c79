// Memory for transfers that no backend can do in one step, such as from a peer's memory to a file.
//
// One piece for each agent, allocated and registered with every backend when the first such transfer is made,
// and never grown. It is cut into *lanes* of a few chunks each. A transfer belongs to one lane for its
// lifetime, so that its plans are made once, and uses it alone while in flight; other transfers of the lane
// wait their turn. Peers do not know this memory and can't reach it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/config/config.h"
#include "base/os/memfd.h"
#include "memory/region_table.h"

namespace towline {

class Agent;

struct StagingSettings {
  uint64_t bytes;        // staging.bytes: of all lanes
  uint64_t chunk_bytes;  // staging.chunk
  uint32_t depth;        // staging.depth: chunks of a lane
  bool straight;         // staging.straight: cached data is read directly into mapped memory
};

// Throws Error for invalid values.
StagingSettings read_staging_settings(const Config& config);

class StagingPool {
 public:
  class Lane {
   public:
    // Takes it for `holder`; false: another holder has it. Any thread, like release().
    [[nodiscard]] bool take(const void* holder) noexcept {
      const void* seen = nullptr;
      return holder_.compare_exchange_strong(seen, holder, std::memory_order_acquire) || seen == holder;
    }
    void release() noexcept { holder_.store(nullptr, std::memory_order_release); }
    [[nodiscard]] bool taken() const noexcept { return holder_.load(std::memory_order_relaxed) != nullptr; }

   private:
    friend class StagingPool;
    uint64_t address_ = 0;
    uint32_t members_ = 0;  // transfers that belong to it; under the pool's lock
    std::atomic<const void*> holder_{nullptr};
  };

  StagingPool(Agent& agent, StagingSettings settings) : agent_(agent), settings_(settings) {}
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  [[nodiscard]] const StagingSettings& settings() const noexcept { return settings_; }

  // Joins the lane with the fewest members; the first call allocates the memory. Throws Error. Control path.
  Lane& join();
  void leave(Lane& lane) noexcept;
  // Call after the first join().
  [[nodiscard]] const towline_region_ref& region() const noexcept { return region_->ref; }
  [[nodiscard]] uint64_t address(const Lane& lane) const noexcept { return lane.address_; }

  struct Use {
    uint64_t bytes;  // 0: none yet
    uint64_t lanes;
    uint64_t lanes_in_use;
    uint64_t transfers;
  };
  [[nodiscard]] Use use() const;

  // The agent closes: no transfer is in flight, and none will be made. Returns the region, or null.
  [[nodiscard]] std::shared_ptr<Region> end() noexcept;

 private:
  Agent& agent_;
  const StagingSettings settings_;
  mutable std::mutex mutex_;
  Mapping memory_;
  std::shared_ptr<Region> region_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace towline

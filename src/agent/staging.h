// Memory that bytes pass through when no backend moves them in one step, such as from a peer's memory to a file.
//
// It comes in *pools* by where it helps: huge pages for whatever the processor and disks move, pinned memory for what
// a GPU moves. A pool is allocated when the first transfer needs it, and never grows. It is cut into *sets* of a few
// chunks each; a set is a region of its own, registered with every backend when the first transfer joins it. A
// transfer belongs to one set for its lifetime, so that its plans are made once, and uses it alone while in flight;
// other transfers of the set wait their turn. Peers do not know this memory and can't reach it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/config/config.h"
#include "base/os/memfd.h"
#include "memory/region_table.h"

namespace towline {

class Agent;

struct StagingSettings {
  uint64_t bytes;        // tuning.staging.bytes: of a pool
  uint64_t chunk_bytes;  // tuning.staging.chunk
  uint32_t depth;        // tuning.staging.depth: chunks of a set
  bool straight;         // tuning.staging.straight: cached data is read directly into mapped memory
};

// Throws Error for invalid values.
StagingSettings read_staging_settings(const Config& config);

enum class StagingKind : uint8_t {
  kPages,   // huge pages where the kernel has them
  kPinned,  // the GPU's backend pins a set with the first plan that uses it
};

inline constexpr uint64_t kAnyGpu = UINT64_MAX;

struct StagingPlace {
  StagingKind kind = StagingKind::kPages;
  uint64_t gpu = kAnyGpu;  // for kPinned: an ordinal of this process; kAnyGpu: the backend chooses

  bool operator==(const StagingPlace&) const = default;
};

// "huge pages", "pinned memory beside GPU 0"
std::string staging_name(const StagingPlace& place);

class Staging {
 public:
  class ChunkSet {
   public:
    // Takes it for `holder`; false: another holder has it. Any thread, like release().
    [[nodiscard]] bool take(const void* holder) noexcept {
      const void* seen = nullptr;
      return holder_.compare_exchange_strong(seen, holder, std::memory_order_acquire) || seen == holder;
    }
    void release() noexcept { holder_.store(nullptr, std::memory_order_release); }
    // By its holder: a backend may still write to it, and can't say when that ends. Nothing uses it any more.
    void spoil() noexcept { spoilt_.store(true, std::memory_order_release); }
    [[nodiscard]] bool spoilt() const noexcept { return spoilt_.load(std::memory_order_acquire); }
    [[nodiscard]] bool taken() const noexcept { return holder_.load(std::memory_order_relaxed) != nullptr; }
    [[nodiscard]] const towline_region_ref& region() const noexcept { return region_->ref; }
    [[nodiscard]] const StagingPlace& place() const noexcept { return place_; }

   private:
    friend class Staging;
    StagingPlace place_;
    std::shared_ptr<Region> region_;  // null: no transfer has joined it yet
    uint32_t members_ = 0;            // transfers that belong to it; under the lock
    std::atomic<const void*> holder_{nullptr};
    std::atomic<bool> spoilt_{false};
  };

  Staging(Agent& agent, StagingSettings settings) : agent_(agent), settings_(settings) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  [[nodiscard]] const StagingSettings& settings() const noexcept { return settings_; }

  // Joins the set with the fewest members; the first calls allocate. Throws Error. Control path.
  ChunkSet& join(const StagingPlace& place);
  void leave(ChunkSet& set) noexcept;

  struct Use {
    std::string name;
    uint64_t bytes;  // registered
    uint64_t sets;
    uint64_t sets_in_use;
    uint64_t transfers;
  };
  [[nodiscard]] std::vector<Use> use() const;  // of each pool

 private:
  struct Pool {
    StagingPlace place;
    Mapping memory;
    std::vector<std::unique_ptr<ChunkSet>> sets;
  };
  Pool& pool_at(StagingPlace place);

  Agent& agent_;
  const StagingSettings settings_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Pool>> pools_;
};

}  // namespace towline

#include "agent/staging.h"

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "base/error.h"

namespace towline {

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kLargestChunk = 1024 * kMiB;
constexpr uint64_t kLargestDepth = 16;
constexpr std::size_t kMostPools = 17;  // huge pages, and 16 GPUs

}  // namespace

StagingSettings read_staging_settings(const Config& config) {
  const StagingSettings settings = {
      config.get_bytes("tuning.staging.bytes", 32 * kMiB), config.get_bytes("tuning.staging.chunk", 1 * kMiB),
      static_cast<uint32_t>(config.get_u64("tuning.staging.depth", 4, 2, kLargestDepth)),
      config.get_bool("tuning.staging.straight", true)};
  if (settings.chunk_bytes < kPageBytes || settings.chunk_bytes > kLargestChunk ||
      settings.chunk_bytes % kPageBytes != 0)
    fail(Status::kInvalidArgument, "tuning.staging.chunk is {} bytes: it must be a multiple of {} up to {}",
         settings.chunk_bytes, kPageBytes, kLargestChunk);
  if (settings.bytes / settings.chunk_bytes < settings.depth)
    fail(Status::kInvalidArgument,
         "tuning.staging.bytes is {}: one transfer needs tuning.staging.depth ({}) chunks of "
         "tuning.staging.chunk ({} bytes), so set more",
         settings.bytes, settings.depth, settings.chunk_bytes);
  return settings;
}

std::string staging_name(const StagingPlace& place) {
  if (place.kind == StagingKind::kPages) return "huge pages";
  return place.gpu == kAnyGpu ? "pinned memory" : fmt::format("pinned memory beside GPU {}", place.gpu);
}

// What a backend may still write to stays mapped.
Staging::~Staging() {
  for (const auto& pool : pools_)
    if (std::ranges::any_of(pool->sets, [](const auto& set) { return set->spoilt(); })) pool->memory.leave();
}

Staging::Pool& Staging::pool_at(StagingPlace place) {
  const auto find = [&] {
    return std::find_if(pools_.begin(), pools_.end(), [&](const auto& pool) { return pool->place == place; });
  };
  auto found = find();
  if (found == pools_.end() && pools_.size() + 1 >= kMostPools) {
    place = {};
    found = find();
  }
  if (found != pools_.end()) return **found;
  const uint64_t set_bytes = settings_.chunk_bytes * settings_.depth;
  const uint64_t count = settings_.bytes / set_bytes;
  auto pool = std::make_unique<Pool>();
  pool->place = place;
  pool->memory = Mapping::map_private(count * set_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    pool->sets.push_back(std::make_unique<ChunkSet>());
    pool->sets.back()->place_ = place;
  }
  pools_.push_back(std::move(pool));
  return *pools_.back();
}

Staging::ChunkSet& Staging::join(const StagingPlace& place) {
  const std::lock_guard lock(mutex_);
  Pool& pool = pool_at(place);
  const auto order = [](const auto& set) { return std::pair(set->spoilt(), set->members_); };
  const auto least = std::ranges::min_element(pool.sets, {}, order);
  ChunkSet& set = **least;
  if (set.spoilt())
    fail(Status::kOutOfMemory,
         "all staging memory ({}) was given up: its transfers failed over a backend that can't say when they "
         "have ended",
         staging_name(pool.place));
  if (set.region_ == nullptr) {
    const uint64_t bytes = settings_.chunk_bytes * settings_.depth;
    const auto number = static_cast<uint64_t>(least - pool.sets.begin());
    set.region_ = agent_.own_regions().add_private(
        static_cast<uint8_t*>(pool.memory.address()) + number * bytes, bytes);
  }
  ++set.members_;
  return set;
}

void Staging::leave(ChunkSet& set) noexcept {
  const std::lock_guard lock(mutex_);
  --set.members_;
}

std::vector<Staging::Use> Staging::use() const {
  const std::lock_guard lock(mutex_);
  std::vector<Use> all;
  for (const auto& pool : pools_) {
    Use use = {staging_name(pool->place), 0, pool->sets.size(), 0, 0};
    for (const auto& set : pool->sets) {
      use.bytes += set->region_ != nullptr ? set->region_->ref.bytes : 0;
      use.sets_in_use += set->taken() ? 1 : 0;
      use.transfers += set->members_;
    }
    all.push_back(std::move(use));
  }
  return all;
}

}  // namespace towline

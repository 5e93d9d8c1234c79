#include "agent/staging_pool.h"

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

}  // namespace

StagingSettings read_staging_settings(const Config& config) {
  const StagingSettings settings = {
      config.get_bytes("staging.bytes", 32 * kMiB), config.get_bytes("staging.chunk", 1 * kMiB),
      static_cast<uint32_t>(config.get_u64("staging.depth", 4, 2, kLargestDepth)),
      config.get_bool("staging.straight", true)};
  if (settings.chunk_bytes < kPageBytes || settings.chunk_bytes > kLargestChunk ||
      settings.chunk_bytes % kPageBytes != 0)
    fail(Status::kInvalidArgument, "staging.chunk is {} bytes: it is a multiple of {} up to {}",
         settings.chunk_bytes, kPageBytes, kLargestChunk);
  if (settings.bytes / settings.chunk_bytes < settings.depth)
    fail(Status::kInvalidArgument,
         "staging.bytes is {}, less than staging.depth ({}) chunks of staging.chunk ({} bytes): a transfer "
         "needs so many",
         settings.bytes, settings.depth, settings.chunk_bytes);
  return settings;
}

StagingPool::Lane& StagingPool::join() {
  std::lock_guard lock(mutex_);
  const uint64_t lane_bytes = settings_.chunk_bytes * settings_.depth;
  if (region_ == nullptr) {
    const uint64_t count = settings_.bytes / lane_bytes;
    if (!memory_.valid()) memory_ = Mapping::map_private(count * lane_bytes);
    region_ = agent_.add_private_region(memory_.address(), memory_.bytes());
    for (uint64_t i = 0; i < count; ++i) {
      lanes_.push_back(std::make_unique<Lane>());
      lanes_.back()->address_ = region_->ref.address + i * lane_bytes;
    }
  }
  const auto least = std::min_element(lanes_.begin(), lanes_.end(), [](const auto& one, const auto& other) {
    return one->members_ < other->members_;
  });
  ++(*least)->members_;
  return **least;
}

void StagingPool::leave(Lane& lane) noexcept {
  std::lock_guard lock(mutex_);
  --lane.members_;
}

StagingPool::Use StagingPool::use() const {
  std::lock_guard lock(mutex_);
  Use use = {region_ == nullptr ? 0 : region_->ref.bytes, lanes_.size(), 0, 0};
  for (const auto& lane : lanes_) {
    use.lanes_in_use += lane->taken() ? 1 : 0;
    use.transfers += lane->members_;
  }
  return use;
}

std::shared_ptr<Region> StagingPool::end() noexcept {
  std::lock_guard lock(mutex_);
  return region_;
}

}  // namespace towline

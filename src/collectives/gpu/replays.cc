#include "collectives/gpu/replays.h"

#include "base/log.h"
#include "towline/device/symmetric.cuh"

namespace towline::collectives::gpu {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kOperationBytes = 2 * sizeof(uint64_t);
constexpr size_t kOperationsOfPage = kPageBytes / kOperationBytes;

}  // namespace

std::optional<Replays::Words> Replays::add(uint64_t op_id, uint32_t op) {
  const std::lock_guard lock(mutex_);
  const size_t at = operations_.size();
  if (at == kMostOperations) return std::nullopt;
  if (at == pages_.size() * kOperationsOfPage) pages_.push_back(device_.make_words(gpu_, kPageBytes));
  if (at + 1 == kMostOperations)
    TOWLINE_LOG(kWarning,
                "graphs recorded {} operations that a hook watches: replays of later ones are not told",
                kMostOperations);
  const size_t offset = at % kOperationsOfPage * kOperationBytes;
  const cuda::Words& page = *pages_.back();
  operations_.push_back(
      {op_id, op, reinterpret_cast<const uint64_t*>(static_cast<const uint8_t*>(page.host()) + offset)});
  count_.store(at + 1, std::memory_order_release);
  return Words{page.gpu() + offset, page.gpu() + offset + sizeof(uint64_t)};
}

void Replays::tell() {
  const size_t count = count_.load(std::memory_order_acquire);
  for (size_t at = 0; at < count; ++at) {
    Operation* one = nullptr;
    {
      const std::lock_guard lock(mutex_);
      one = &operations_[at];
    }
    // In this order: each end has its beginning.
    const uint64_t ended = device::load_acquire(&one->words[1]);
    const uint64_t begun = device::load_acquire(&one->words[0]);
    while (one->ended_told < ended) {
      if (one->begun_told == one->ended_told) {
        ++one->begun_told;
        host_.replayed(host_.context, one->op_id, one->op, 0);
      }
      ++one->ended_told;
      host_.replayed(host_.context, one->op_id, one->op, 1);
    }
    for (; one->begun_told < begun; ++one->begun_told) host_.replayed(host_.context, one->op_id, one->op, 0);
  }
}

}  // namespace towline::collectives::gpu

#include "gpu/driver_spares.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gpu/driver_queue.h"

namespace towline::cuda {
namespace {

constexpr uint64_t kLeastBytes = 4096;

uint64_t rounded(uint64_t bytes) { return std::bit_ceil(std::max(bytes, kLeastBytes)); }

// What was let go, by context and bytes.
template <class Block>
class Spares {
 public:
  std::optional<Block> take(driver::Context context, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find({context, bytes});
    if (found == blocks_.end() || found->second.empty()) return std::nullopt;
    const Block block = found->second.back();
    found->second.pop_back();
    return block;
  }
  void keep(driver::Context context, uint64_t bytes, Block block) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      blocks_[{context, bytes}].push_back(block);
    } catch (const std::bad_alloc&) {
      // Nobody gets it any more.
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<driver::Context, uint64_t>, std::vector<Block>> blocks_;
};

struct PinnedBlock {
  void* host;
  driver::Pointer gpu;
};

// They go with the process.
Spares<PinnedBlock>& pinned_spares() {
  static auto& spares = *new Spares<PinnedBlock>;
  return spares;
}
Spares<driver::Pointer>& gpu_spares() {
  static auto& spares = *new Spares<driver::Pointer>;
  return spares;
}

}  // namespace

OwnPinnedMemory::OwnPinnedMemory(const driver::Api& api, driver::Context context, uint64_t bytes,
                                 const char* what)
    : context_(context), bytes_(rounded(bytes)) {
  if (const auto spare = pinned_spares().take(context, bytes_)) {
    host_ = spare->host;
    gpu_ = spare->gpu;
    return;
  }
  const Current current(api, context);
  api.check(api.host_alloc(&host_, bytes_, driver::kHostPortableMapped), what);
  if (const driver::Result result = api.host_device_pointer(&gpu_, host_, 0); result != driver::kSuccess) {
    api.host_free(host_);
    api.check(result, "cuMemHostGetDevicePointer");
  }
}

OwnPinnedMemory::~OwnPinnedMemory() { pinned_spares().keep(context_, bytes_, {host_, gpu_}); }

OwnGpuMemory::OwnGpuMemory(const driver::Api& api, driver::Context context, uint64_t bytes, const char* what)
    : context_(context), bytes_(rounded(bytes)) {
  if (const auto spare = gpu_spares().take(context, bytes_)) {
    address_ = *spare;
    return;
  }
  const Current current(api, context);
  api.check(api.memory_alloc(&address_, bytes_), what);
}

OwnGpuMemory::~OwnGpuMemory() { gpu_spares().keep(context_, bytes_, address_); }

}  // namespace towline::cuda

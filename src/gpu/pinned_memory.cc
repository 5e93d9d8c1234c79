#include "gpu/pinned_memory.h"

#include <new>
#include <utility>

#include "gpu/near_memory.h"

namespace towline::cuda {

// They go with the process.
PinnedMemory::Spares& PinnedMemory::spares() {
  static auto& spares = *new Spares;
  return spares;
}

PinnedMemory::PinnedMemory(Device& device, std::optional<uint32_t> node, uint64_t bytes)
    : key_(&device, node, bytes) {
  if (device.unpinning_waits()) {
    const std::lock_guard lock(spares().mutex);
    if (const auto found = spares().blocks.find(key_);
        found != spares().blocks.end() && !found->second.empty()) {
      block_ = std::move(found->second.back());
      found->second.pop_back();
      return;
    }
  }
  block_.memory = allocate_near(node, bytes);
  block_.pinned = device.pin(reinterpret_cast<uint64_t>(block_.memory->address()), block_.memory->bytes());
}

PinnedMemory::~PinnedMemory() {
  if (!std::get<Device*>(key_)->unpinning_waits()) {
    block_.pinned.reset();  // before the memory
    return;
  }
  try {
    const std::lock_guard lock(spares().mutex);
    spares().blocks[key_].push_back(std::move(block_));
  } catch (const std::bad_alloc&) {
    block_.pinned.reset();
  }
}

}  // namespace towline::cuda

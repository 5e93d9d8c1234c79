// Host memory of the library's own that GPUs reach: what copies go through. Pinned once and then kept for whoever next needs as much
// on that NUMA node, where a driver that unpins waits for every kernel (driver_spares.h says what comes of that).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "gpu/device.h"
#include "memory/shared_memory.h"

namespace towline::cuda {

class PinnedMemory {
 public:
  // On that NUMA node where it is known. Its contents are whatever they were. When it goes, no GPU uses it any more.
  // Throws Error. The device lives as long as the process.
  PinnedMemory(Device& device, std::optional<uint32_t> node, uint64_t bytes);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();
  [[nodiscard]] void* address() const noexcept { return block_.memory->address(); }
  [[nodiscard]] uint64_t bytes() const noexcept { return block_.memory->bytes(); }
  [[nodiscard]] uint64_t delta() const noexcept { return block_.pinned->delta(); }

 private:
  using Key = std::tuple<Device*, std::optional<uint32_t>, uint64_t>;  // node, bytes
  struct Block {
    std::unique_ptr<SharedMemory> memory;
    std::unique_ptr<Pinned> pinned;
  };
  struct Spares {
    std::mutex mutex;
    std::map<Key, std::vector<Block>> blocks;
  };
  static Spares& spares();

  const Key key_;
  Block block_;
};

}  // namespace towline::cuda

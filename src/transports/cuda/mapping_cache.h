// Peers' memory as our GPUs reach it: each allocation mapped once for each GPU, however many regions and
// connections reach into it; unmapped when the last of them has let go.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/os/memfd.h"
#include "gpu/device.h"

namespace towline::cuda {

class MappingCache {
 public:
  // The address at which one of our GPUs finds an owner's memory, for as long as `keep` lives.
  struct Way {
    std::shared_ptr<const void> keep;
    uint64_t delta = 0;  // to be added to the owner's addresses
  };

  explicit MappingCache(Device& device) : device_(device) {}

  // Any thread, and it may block: mapping takes 10 ms, and pinning a peer's host memory longer. Throws Error.
  Way map(const uint64_t incarnation[2], uint32_t gpu, std::span<const Shared> parts, bool writable);
  [[nodiscard]] size_t live() const;

 private:
  // Keyed by the allocations' numbers at their owner, so that memory which was freed and allocated again at
  // the same address is mapped again.
  struct Key {
    uint64_t owner[2];
    uint64_t ids;  // of all parts, folded
    uint64_t address;
    uint64_t bytes;
    uint64_t file[3];
    uint32_t gpu;
    bool writable;
    auto operator<=>(const Key&) const = default;
  };
  struct HostFile;

  Way map_host_file(uint32_t gpu, const Shared& part, bool writable);
  template <class Thing>
  using Known = std::map<Key, std::weak_ptr<const Thing>>;
  template <class Thing, class Make>
  std::shared_ptr<const Thing> find_or_make(Known<Thing>& known, const Key& key, Make&& make);

  Device& device_;
  mutable std::mutex mutex_;
  Known<Mapped> mapped_;
  Known<HostFile> files_;
};

}  // namespace towline::cuda

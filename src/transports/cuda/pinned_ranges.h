// Host memory of this process that was pinned here: each range once, whichever agents and transfers need it,
// and let go when the last of them has. One list for the process, as the driver has: to it, what another
// agent has pinned looks like what the application has, and would be gone with that agent.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "transports/cuda/settings.h"

namespace towline::cuda {

class Device;
class Pinned;
enum class Use : uint8_t;

class PinnedRanges {
 public:
  PinnedRanges();
  PinnedRanges(const PinnedRanges&) = delete;
  PinnedRanges& operator=(const PinnedRanges&) = delete;
  ~PinnedRanges();  // nobody holds a range

  // Pinned by us or the application, for as long as the result lives. Any thread. Throws Error.
  std::shared_ptr<const Pinned> take(Device& device, uint64_t address, uint64_t bytes, Use use, PinUse pin);

 private:
  struct Range {
    uint64_t end = 0;
    uint64_t holders = 0;
    std::unique_ptr<Pinned> pinned;
  };
  using Ranges = std::map<uint64_t, Range>;  // by begin; none overlaps another
  class Hold;

  std::mutex mutex_;  // held while the driver pins and lets go: nobody finds a range that is half there
  Ranges ranges_;
};

}  // namespace towline::cuda

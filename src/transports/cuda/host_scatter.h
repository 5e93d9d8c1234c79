// The host's half of gathered copies whose host side lies scattered: the copy engine sends chunks into a pool of
// pinned memory, and threads of the host put each chunk's pieces into their places. So neither a kernel's stores
// nor many short ranges of the copy engine are needed.
//
// One queue, one worker. Chunks end in the order in which they were begun.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gpu/device.h"
#include "gpu/pinned_memory.h"
#include "transports/cuda/piece_copier.h"
#include "transports/cuda/to_host.h"

namespace towline::cuda {

class HostScatter {
 public:
  static constexpr uint32_t kSlots = kDetourSlots;
  static constexpr uint64_t kSlotBytes =
      4 << 20;  // of 1 MiB, what goes on between two chunks takes as long as one

  // Takes the pool, near that NUMA node. Throws Error. The team outlives it.
  HostScatter(Device& device, CopyTeam& team, std::optional<uint32_t> node);

  [[nodiscard]] bool has_room() const noexcept { return begun_ - ended_ < kSlots; }
  // Queues the next chunk of [next, end) and moves `next` on. There is room. `chunks` counts those of its copy that
  // are not in their places yet; it stays until it is 0 again, or forget().
  Code relay(const ToHost& list, CopyQueue& queue, uint32_t blocks, uint64_t& next, uint64_t end,
             uint32_t& chunks) noexcept;
  // Begins and ends what can be. Returns how many chunks ended.
  uint32_t progress(const CopyQueue& queue) noexcept;
  // The queue is broken: waits for the host's threads, and forgets all chunks.
  void forget() noexcept;

 private:
  struct Slot {
    const ToHost* list = nullptr;
    uint32_t* chunks = nullptr;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t relay = 0;  // the queue's number of it
    bool arrived = false;
  };
  [[nodiscard]] uint64_t pool(uint64_t slot) const noexcept;

  const PinnedMemory memory_;
  PieceCopier copier_;
  Slot slots_[kSlots];
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;
};

}  // namespace towline::cuda

#include "transports/cuda/host_scatter.h"

#include <algorithm>

namespace towline::cuda {

HostScatter::HostScatter(Device& device, CopyTeam& team, std::optional<uint32_t> node)
    : memory_(device, node, kSlots * kSlotBytes), copier_(team, true) {}

uint64_t HostScatter::pool(uint64_t slot) const noexcept {
  return reinterpret_cast<uint64_t>(memory_.address()) + slot * kSlotBytes;
}

Code HostScatter::relay(const ToHost& list, CopyQueue& queue, uint32_t blocks, uint64_t& next, uint64_t end,
                        uint32_t& chunks) noexcept {
  const uint64_t index = begun_ % kSlots;
  Slot& slot = slots_[index];
  const uint64_t begin = next;
  const uint64_t limit = list.end_of_chunk(begin, std::min(end, begin + kSlotBytes), kMostStretches);
  const Code code = list.relay_to(queue, blocks, pool(index) + memory_.delta(), begin, limit);
  if (code != 0) return code;
  slot = {&list, &chunks, begin, limit, queue.relays_begun(), false};
  ++chunks;
  ++begun_;
  next = limit;
  return 0;
}

uint32_t HostScatter::progress(const CopyQueue& queue) noexcept {
  uint32_t over = 0;
  const uint64_t sent = queue.relays_sent();
  for (uint64_t i = ended_; i < begun_; ++i) {
    const auto index = static_cast<uint32_t>(i % kSlots);
    Slot& slot = slots_[index];
    if (slot.arrived) continue;
    if (slot.relay > sent) break;
    slot.arrived = true;
    copier_.clear(index);
    slot.list->scatter(slot.begin, slot.end, pool(index), copier_, index);
    (void)copier_.start(index);  // the host refuses nothing
  }
  for (; ended_ < begun_; ++ended_, ++over) {
    const auto index = static_cast<uint32_t>(ended_ % kSlots);
    Slot& slot = slots_[index];
    if (!slot.arrived || copier_.look(index, 0) == CopyQueue::kBusy) break;
    --*slot.chunks;
  }
  return over;
}

void HostScatter::forget() noexcept {
  copier_.drain();
  for (; ended_ < begun_; ++ended_) *slots_[ended_ % kSlots].chunks = 0;
}

}  // namespace towline::cuda

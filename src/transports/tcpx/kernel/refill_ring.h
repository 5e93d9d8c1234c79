// The ring by which pages of a zero-copy receive area go back to the kernel: we write entries and the tail, the kernel
// reads them and writes the head. A value from the kernel is copied once and bounded before it is used.
//
// One thread.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "transports/tcpx/kernel/zcrx_abi.h"

namespace towline::tcpx {

class RefillRing {
 public:
  // `region` outlives it. Throws Error if the kernel's offsets name something outside of the region.
  RefillRing(std::span<uint8_t> region, const zcrx::Offsets& offsets, uint32_t entries, uint64_t area_token)
      : entries_(entries), area_token_(area_token) {
    const auto fits = [&](uint64_t at, uint64_t bytes, uint64_t align) {
      return at % align == 0 && at <= region.size() && bytes <= region.size() - at;
    };
    if (!std::has_single_bit(entries) || !fits(offsets.head, sizeof(uint32_t), alignof(uint32_t)) ||
        !fits(offsets.tail, sizeof(uint32_t), alignof(uint32_t)) ||
        !fits(offsets.entries, uint64_t{entries} * sizeof(zcrx::Refill), alignof(zcrx::Refill)))
      fail(Status::kProtocol, "the kernel placed a refill ring of {} entries outside of its {} bytes",
           entries, region.size());
    head_ = reinterpret_cast<uint32_t*>(region.data() + offsets.head);
    tail_ = reinterpret_cast<uint32_t*>(region.data() + offsets.tail);
    ring_ = reinterpret_cast<zcrx::Refill*>(region.data() + offsets.entries);
  }

  // Entries that the kernel has not taken. An impossible head counts as a full ring, so that nothing is overwritten.
  [[nodiscard]] uint32_t queued() const noexcept {
    const uint32_t queued = next_ - std::atomic_ref(*head_).load(std::memory_order_acquire);
    return queued <= entries_ ? queued : entries_;
  }
  // False: full.
  [[nodiscard]] bool push(uint64_t offset, uint32_t bytes) noexcept {
    if (queued() == entries_) return false;
    ring_[next_ & (entries_ - 1)] = {offset | area_token_, bytes, 0};
    std::atomic_ref(*tail_).store(++next_, std::memory_order_release);
    return true;
  }

 private:
  const uint32_t entries_;
  const uint64_t area_token_;
  uint32_t* head_ = nullptr;
  uint32_t* tail_ = nullptr;
  zcrx::Refill* ring_ = nullptr;
  uint32_t next_ = 0;
};

}  // namespace towline::tcpx

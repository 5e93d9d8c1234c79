// When host memory of a region is pinned.
//
// Pinning goes at 20 to 35 GB/s, once; then the memory moves at the speed of PCIe, 51 to 52 GB/s on an H200.
// Through the pool (detour.h) it moves at 25 to 28, at once and every time, and keeps processors busy. So
// memory that is moved once is not pinned, and memory that is moved again is pinned by a thread from the
// second post on. Meanwhile posts still use the pool, slowly (9 to 14 GB/s: the driver accepts few launches),
// and the worker continues. A region not larger than the pool is pinned by the first transfer that needs it:
// this takes no longer, and then a page takes 12 us.
//
// Memory stays pinned until its region is deregistered.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "gpu/device.h"
#include "transports/cuda/settings.h"

namespace towline::cuda {

// One region's host memory. Any thread.
class HostPin {
 public:
  // Regions of up to so many bytes are pinned by the first transfer that needs them.
  static constexpr uint64_t kAtOnceBytes = 8 << 20;

  HostPin(Device& device, PinUse use, uint64_t address, uint64_t bytes)
      : device_(device), use_(use), address_(address), bytes_(bytes) {}

  // Pinned, for as long as the result lives; null: not now. Waits for no driver that is pinning it. Throws
  // Error: it can't be, or pin_meanwhile() found so.
  [[nodiscard]] std::shared_ptr<const Pinned> find(Use use);
  // The same, and pins it if nobody has. Throws Error.
  std::shared_ptr<const Pinned> now(Use use);
  // Not worth waiting with.
  [[nodiscard]] bool small() const noexcept { return bytes_ <= kAtOnceBytes; }
  // Does as now() does, while nobody waits for it.
  void pin_meanwhile() noexcept;
  // find() has an answer.
  [[nodiscard]] bool settled() const noexcept { return settled_.load(std::memory_order_acquire); }
  // A post goes through the pool instead. True, once: it shall be pinned meanwhile.
  [[nodiscard]] bool missed() noexcept {
    return use_ == PinUse::kAuto && posts_.fetch_add(1, std::memory_order_relaxed) == 1;
  }
  // The region is being deregistered: waits while it is being pinned.
  void close() noexcept;

 private:
  std::shared_ptr<const Pinned> pin(Use use);  // under pinning_

  Device& device_;
  const PinUse use_;
  const uint64_t address_;
  const uint64_t bytes_;
  std::atomic<uint32_t> posts_{0};
  std::atomic<bool> settled_{false};
  std::mutex pinning_;  // held while the driver pins
  std::mutex mutex_;
  bool closed_ = false;                   // under both
  std::shared_ptr<const Pinned> pinned_;  // by us
  std::string refusal_;                   // of pin_meanwhile()
};

// The thread that pins. It starts when first there is something to pin.
class PinThread {
 public:
  PinThread() = default;
  PinThread(const PinThread&) = delete;
  PinThread& operator=(const PinThread&) = delete;
  ~PinThread();  // waits for what is being pinned

  void pin(std::shared_ptr<HostPin> memory) noexcept;

 private:
  void run() noexcept;

  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<std::shared_ptr<HostPin>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace towline::cuda

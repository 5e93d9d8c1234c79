// Aligned buffers for direct I/O, kept for the next one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "storage/posix/segments.h"

namespace towline::posix {

// Any thread.
class BounceBuffers {
 public:
  BounceBuffers() { free_.reserve(kKept); }
  BounceBuffers(const BounceBuffers&) = delete;
  BounceBuffers& operator=(const BounceBuffers&) = delete;
  ~BounceBuffers() {
    for (uint8_t* buffer : free_) std::free(buffer);
  }

  [[nodiscard]] uint8_t* take() noexcept {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        uint8_t* buffer = free_.back();
        free_.pop_back();
        return buffer;
      }
    }
    return static_cast<uint8_t*>(std::aligned_alloc(64 << 10, kBounceBytes));
  }
  void give(uint8_t* buffer) noexcept {
    {
      std::lock_guard lock(mutex_);
      if (free_.size() < kKept) {
        free_.push_back(buffer);
        return;
      }
    }
    std::free(buffer);
  }

 private:
  static constexpr size_t kKept = 16;
  std::mutex mutex_;
  std::vector<uint8_t*> free_;
};

}  // namespace towline::posix

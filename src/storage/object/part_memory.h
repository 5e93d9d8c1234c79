// Memory in which parts are collected from staged chunks. A part is kept until the server has accepted it,
// since it may have to be sent again.
//
// All collections of an agent share `tuning.object.collect`. A collection without any part gets its first one beyond
// that too. So it waits only for its own parts, never for those of others, which may wait for a slow peer.
// Lanes of the staging memory bound the number of collections.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "towline/status.h"

namespace towline::object {

class PartMemory;

// Given back when it goes.
class PartBuffer {
 public:
  PartBuffer() = default;
  PartBuffer(PartBuffer&& other) noexcept
      : bytes_(std::move(other.bytes_)),
        size_(std::exchange(other.size_, 0)),
        memory_(std::exchange(other.memory_, nullptr)) {}
  PartBuffer& operator=(PartBuffer&& other) noexcept {
    PartBuffer old(std::move(other));
    std::swap(bytes_, old.bytes_);
    std::swap(size_, old.size_);
    std::swap(memory_, old.memory_);
    return *this;
  }
  inline ~PartBuffer();

  [[nodiscard]] std::byte* data() noexcept { return bytes_.get(); }

 private:
  friend class PartMemory;
  std::unique_ptr<std::byte[]> bytes_;
  uint64_t size_ = 0;
  PartMemory* memory_ = nullptr;
};

// One collection's. On its client's thread; `all` is shared.
class PartMemory {
 public:
  PartMemory(std::atomic<uint64_t>& all, uint64_t most) noexcept : all_(all), most_(most) {}
  PartMemory(const PartMemory&) = delete;
  PartMemory& operator=(const PartMemory&) = delete;

  // kAgain: not before a part of this collection has gone.
  [[nodiscard]] Status take(uint64_t bytes, PartBuffer& buffer) noexcept {
    const uint64_t before = all_.fetch_add(bytes, std::memory_order_relaxed);
    Status status = Status::kOk;
    if (mine_ != 0 && before + bytes > most_) {
      status = Status::kAgain;
    } else {
      buffer.bytes_.reset(new (std::nothrow) std::byte[bytes]);
      if (buffer.bytes_ == nullptr) status = Status::kOutOfMemory;
    }
    if (status != Status::kOk) {
      all_.fetch_sub(bytes, std::memory_order_relaxed);
      return status;
    }
    mine_ += bytes;
    buffer.size_ = bytes;
    buffer.memory_ = this;
    return status;
  }

 private:
  friend class PartBuffer;
  void give_back(uint64_t bytes) noexcept {
    mine_ -= bytes;
    all_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  std::atomic<uint64_t>& all_;
  const uint64_t most_;
  uint64_t mine_ = 0;
};

inline PartBuffer::~PartBuffer() {
  if (memory_ != nullptr) memory_->give_back(size_);
}

}  // namespace towline::object

// The sealed shared memory of one connection: a byte ring for each direction. The connector makes it, the
// acceptor gets its descriptor with the hello and trusts nothing about it that it has not checked.
#pragma once

#include <cstdint>

#include "base/os/memfd.h"
#include "base/os/unique_fd.h"
#include "framing/ring_lane.h"

namespace towline::shm {

inline constexpr uint32_t kMinRingBytes = 16u << 10;
inline constexpr uint32_t kMaxRingBytes = 64u << 20;
inline constexpr uint32_t kExpressRingBytes = 64u << 10;

class RingMemory {
 public:
  enum class Side { kConnector, kAcceptor };

  // Makes two rings of `ring_bytes` each: a power of two between the limits above. `fd` receives the descriptor
  // to send. Throws Error.
  static RingMemory create(uint32_t ring_bytes, UniqueFd& fd);
  // Memory that a peer says to be such. Throws Error when it is not: wrong size, not sealed, not plain shared
  // memory.
  static RingMemory adopt(int fd, uint32_t ring_bytes);

  [[nodiscard]] framing::RingView outgoing() const noexcept {
    return view(side_ == Side::kConnector ? 0 : 1);
  }
  [[nodiscard]] framing::RingView incoming() const noexcept {
    return view(side_ == Side::kConnector ? 1 : 0);
  }

 private:
  RingMemory(Mapping mapping, uint32_t ring_bytes, Side side) noexcept
      : mapping_(std::move(mapping)), ring_bytes_(ring_bytes), side_(side) {}

  [[nodiscard]] framing::RingView view(uint32_t index) const noexcept {
    return framing::ring_view(mapping_.address() + index * framing::ring_bytes(ring_bytes_), ring_bytes_);
  }

  Mapping mapping_;
  uint32_t ring_bytes_;
  Side side_;
};

}  // namespace towline::shm

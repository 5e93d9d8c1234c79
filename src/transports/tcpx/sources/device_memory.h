// Payload that a NIC puts into memory bound to its receive queues: recvmsg() gives control messages that say where, and
// tokens that go back by setsockopt(). The same for both dialects; providers differ in how memory and rules come about.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "base/os/unique_fd.h"
#include "transports/tcpx/kernel/control_messages.h"
#include "transports/tcpx/sources/held_tokens.h"
#include "transports/tcpx/sources/source.h"

namespace towline::tcpx {

inline constexpr uint64_t kPoolPageBytes = 4096;

// A pool that all sources of a provider receive into.
struct SharedPool {
  Pool pool;
  uint32_t number = 0;  // the kernel's
  uint32_t pages = 0;
  std::atomic<uint32_t> sources{0};
};

class DeviceMemorySource : public Source {
 public:
  // Keeps the socket open for as long as it lives: tokens end with it, and a GPU may still read. `shared` outlives it.
  // Throws Error.
  DeviceMemorySource(int socket, const Dialect& dialect, SharedPool& shared, const char* name);
  ~DeviceMemorySource() override;

  Polled poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept override;
  void release(std::span<const uint32_t> tokens) noexcept override;
  [[nodiscard]] std::span<const Pool> pools() const noexcept override { return {&shared_.pool, 1}; }
  // Its share: the pool is the other sources' as well.
  [[nodiscard]] uint32_t tokens() const noexcept override {
    return std::max(4u, shared_.pages / std::max(1u, shared_.sources.load(std::memory_order_relaxed)));
  }
  [[nodiscard]] const char* name() const noexcept override { return name_; }
  [[nodiscard]] uint64_t bad_releases() const noexcept override { return held_.bad(); }
  // The number of returned tokens that the kernel knew.
  [[nodiscard]] uint64_t returned() const noexcept { return returned_count_; }
  [[nodiscard]] uint64_t freed() const noexcept { return freed_count_; }

 private:
  static constexpr std::size_t kMostFragments = 128;
  static constexpr uint32_t kMostTokens = 1u << 18;  // the kernel gives the lowest that is free

  void give_back() noexcept;

  const UniqueFd socket_;
  const Dialect dialect_;
  SharedPool& shared_;
  const char* const name_;
  HeldTokens held_{kMostTokens};
  std::vector<uint32_t> returned_;  // scratch
  uint64_t returned_count_ = 0;
  uint64_t freed_count_ = 0;
  alignas(8) std::array<uint8_t, kMostFragments * kControlBytesPerFragment> control_;
};

}  // namespace towline::tcpx

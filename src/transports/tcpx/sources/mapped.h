// TCP_ZEROCOPY_RECEIVE: the kernel maps the pages that packets arrived in to where this process sees them, as far as
// they are whole and aligned; the rest is copied. Needs no special NIC. Loopback's pages are seldom whole.
#pragma once

#include <vector>

#include "base/os/unique_fd.h"
#include "transports/tcpx/sources/held_tokens.h"
#include "transports/tcpx/sources/source.h"

namespace towline::tcpx {

class MappedSource final : public Source {
 public:
  static constexpr uint32_t kWindows = 16;
  static constexpr uint32_t kWindowBytes = 256u << 10;

  // Throws Error where the socket can't be mapped.
  explicit MappedSource(int socket);
  ~MappedSource() override;

  Polled poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept override;
  void release(std::span<const uint32_t> tokens) noexcept override;
  [[nodiscard]] std::span<const Pool> pools() const noexcept override { return {&pool_, 1}; }
  [[nodiscard]] uint32_t tokens() const noexcept override { return kWindows; }
  [[nodiscard]] const char* name() const noexcept override { return "mapped"; }
  [[nodiscard]] uint64_t bad_releases() const noexcept override { return held_.bad(); }

  [[nodiscard]] uint64_t mapped_bytes() const noexcept { return mapped_bytes_; }

 private:
  Polled copy(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept;

  const int socket_;
  Pool pool_;
  HeldTokens held_{kWindows};
  std::vector<uint32_t> free_;
  uint32_t copy_first_ = 0;  // bytes that can't be mapped come before others can
  uint64_t mapped_bytes_ = 0;
};

class MappedProvider final : public Provider {
 public:
  // Throws Error that says why the kernel can't.
  MappedProvider();
  [[nodiscard]] const char* name() const noexcept override { return "mapped"; }
  std::unique_ptr<Source> make(int socket) override { return std::make_unique<MappedSource>(socket); }
};

}  // namespace towline::tcpx

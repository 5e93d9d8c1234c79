// No pool: the kernel copies what arrives into the caller's buffer. The last rung of the ladder.
#pragma once

#include "transports/tcpx/sources/source.h"

namespace towline::tcpx {

// recv() into the front of `linear`, as one linear fragment.
[[nodiscard]] Polled receive_linear(int socket, uint8_t* linear, std::size_t most,
                                    std::span<Fragment> out) noexcept;
// The result for errno, after a call on a socket failed.
[[nodiscard]] framing::IoResult socket_failure(int error) noexcept;

class CopySource final : public Source {
 public:
  explicit CopySource(int socket) noexcept : socket_(socket) {}

  Polled poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept override {
    return receive_linear(socket_, linear, most, out);
  }
  void release(std::span<const uint32_t>) noexcept override {}
  [[nodiscard]] std::span<const Pool> pools() const noexcept override { return {}; }
  [[nodiscard]] uint32_t tokens() const noexcept override { return UINT32_MAX; }
  [[nodiscard]] const char* name() const noexcept override { return "copy"; }

 private:
  const int socket_;
};

class CopyProvider final : public Provider {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "copy"; }
  std::unique_ptr<Source> make(int socket) override { return std::make_unique<CopySource>(socket); }
};

}  // namespace towline::tcpx

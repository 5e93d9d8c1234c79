// Packets of the handshake (wire.h), read from a stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/os/stream.h"
#include "transports/tcp/wire.h"

namespace towline::tcp {

// Reads one packet from a non-blocking socket, and never a byte more.
class PacketReader {
 public:
  enum class State { kMore, kWhole, kGarbage, kClosed };

  explicit PacketReader(uint32_t magic) noexcept : magic_(magic) {}
  State receive(Stream& stream) noexcept;
  [[nodiscard]] std::span<const uint8_t> packet() const noexcept { return {bytes_.data(), have_}; }
  [[nodiscard]] int error() const noexcept {
    return error_;
  }  // kClosed: the errno, or 0 for the end of the stream

 private:
  uint32_t magic_;
  std::array<uint8_t, kMaxPacketBytes> bytes_;
  std::size_t have_ = 0;
  std::size_t want_ = kPrefixBytes;
  int error_ = 0;
};

}  // namespace towline::tcp

// Netlink messages as bytes: writing requests, and reading replies that nothing is assumed of. Pure functions; the
// socket is in netlink_socket.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/wire.h"

namespace towline::tcpx {

// Writes one message of a generic netlink family into a fixed buffer.
class NetlinkRequest {
 public:
  NetlinkRequest(std::span<uint8_t> out, uint16_t family, uint16_t flags, uint32_t sequence, uint8_t command,
                 uint8_t version) noexcept;

  void u32(uint16_t type, uint32_t value) noexcept;
  void u8(uint16_t type, uint8_t value) noexcept;
  void text(uint16_t type, std::string_view value) noexcept;  // with its terminating zero
  // Attributes until end() are inside of this one.
  [[nodiscard]] std::size_t begin(uint16_t type) noexcept;
  void end(std::size_t began) noexcept;

  // The message; empty where it did not fit.
  [[nodiscard]] std::span<const uint8_t> finish() noexcept;

 private:
  void header(uint16_t type, std::size_t bytes) noexcept;
  void pad() noexcept;

  WireWriter writer_;
  const std::span<uint8_t> out_;
};

struct NetlinkReply {
  uint16_t type = 0;
  uint16_t flags = 0;
  uint32_t sequence = 0;
  std::span<const uint8_t> payload;
};

// Takes the first message off a datagram. False at its end, and where a length can't be right.
[[nodiscard]] bool next_reply(std::span<const uint8_t>& datagram, NetlinkReply& reply) noexcept;

struct Attribute {
  uint16_t type = 0;
  std::span<const uint8_t> data;

  // 0 where it has another length.
  [[nodiscard]] uint32_t u32() const noexcept;
  [[nodiscard]] uint16_t u16() const noexcept;
  [[nodiscard]] uint8_t u8() const noexcept;
  [[nodiscard]] std::string_view text() const noexcept;  // up to the first zero
};

[[nodiscard]] bool next_attribute(std::span<const uint8_t>& attributes, Attribute& attribute) noexcept;

// The attributes of a generic netlink reply: the bytes after command and version. Empty if it has none.
[[nodiscard]] std::span<const uint8_t> generic_attributes(const NetlinkReply& reply) noexcept;

// The outcome of a request.
struct NetlinkEnd {
  int error = 0;          // errno; 0: it was done
  std::string_view text;  // the kernel's own words, into the message; often none
};
// False: `reply` is data. A length that can't be right gives EBADMSG.
[[nodiscard]] bool decode_end(const NetlinkReply& reply, NetlinkEnd& end) noexcept;

}  // namespace towline::tcpx

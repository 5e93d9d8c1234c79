// The messages between the two ends of a connection, sent as Towline notices. All of it is bounded and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace towline_tcpx {

enum class MessageType : uint32_t {
  kHello = 1,      // payload: the sender's metadata
  kWelcome = 2,    // it was accepted
  kMemory = 3,     // memory = {number, address, bytes, ...}; payload: metadata of its region
  kReceive = 4,    // id, memory number, offset, bytes, tag: a receive was posted
  kEnded = 5,      // id, bytes, status: the receive's bytes are there, or why not
  kWithdraw = 6,   // id: the receive is not wanted any more
  kWithdrawn = 7,  // id: and nothing of it will come
  kGoodbye = 8,
};

struct Message {
  MessageType type = MessageType::kGoodbye;
  int32_t status = 0;
  uint64_t id = 0;
  uint64_t memory = 0;
  uint64_t offset = 0;  // or the memory's address
  uint64_t bytes = 0;
  uint64_t tag = 0;
  int64_t gpu = -1;
  std::span<const std::byte> payload{};
};

[[nodiscard]] std::string encode(const Message& message);
// Its payload points into `bytes`. Empty: not one of our messages.
[[nodiscard]] std::optional<Message> decode(std::span<const std::byte> bytes) noexcept;

}  // namespace towline_tcpx

// Messages that two ends of a connection exchange over the carrier, beside the core's messages. Those begin with a
// small number (agent/control_message.h), these with kMagic. Every decoder is length-checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabric/messages.h"
#include "towline/status.h"

namespace towline::rdma {

inline constexpr uint32_t kMagic = 0x31'41'4d'54;  // "TMA1"
inline constexpr std::size_t kMaxReasonBytes = 256;

enum class MessageKind : uint8_t {
  kHello = 1,    // each side's first: the engine that it moves bytes by
  kAsk = 2,      // which keys has your region?
  kAnswer = 3,   // these, or why not
  kControl = 4,  // a control message of the engines
  kPoll = 5,     // bytes are under way over rails that wake nobody: poll them for a while
};

struct Ask {
  uint64_t key = 0;  // of the region at its owner
};

struct Answer {
  uint64_t key = 0;
  Status status = Status::kOk;
  std::string reason;           // of another status, at most kMaxReasonBytes
  fabric::RemoteMemory memory;  // of kOk
};

// kNone: not one of ours.
std::optional<MessageKind> kind_of(std::span<const uint8_t> message) noexcept;

std::vector<uint8_t> encode_hello(const fabric::EngineAddress& engine);
std::vector<uint8_t> encode(const Ask& ask);
std::vector<uint8_t> encode(const Answer& answer);
std::vector<uint8_t> encode_poll();
std::vector<uint8_t> encode_control(std::span<const uint8_t> message);

std::optional<fabric::EngineAddress> decode_hello(std::span<const uint8_t> message);
std::optional<Ask> decode_ask(std::span<const uint8_t> message);
std::optional<Answer> decode_answer(std::span<const uint8_t> message);
std::span<const uint8_t> control_in(std::span<const uint8_t> message) noexcept;

// The address of an instance, which peers learn before they connect: its carrier's, and the kinds of its rails.
struct Address {
  std::vector<std::string> kinds;
  std::vector<uint8_t> carrier;
};
std::vector<uint8_t> encode(const Address& address);
std::optional<Address> decode_address(std::span<const uint8_t> bytes);

}  // namespace towline::rdma

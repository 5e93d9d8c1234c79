// Messages that two ends of a connection exchange over the carrier, beside the core's messages. Those begin with a
// small number (agent/control_message.h), these with kMagic. Every decoder is length-checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "towline/status.h"

namespace towline::nixl_net {

inline constexpr uint32_t kMagic = 0x31'4e'4d'54;  // "TMN1"
inline constexpr std::size_t kMaxReasonBytes = 256;
inline constexpr std::size_t kMaxTypeBytes = 64;
inline constexpr std::size_t kMaxInfoBytes = 60000;  // of what an engine tells of itself, or of a region

enum class MessageKind : uint8_t {
  kHello = 1,   // each side's first: the engine that it moves bytes by
  kAsk = 2,     // what does your engine tell of your region?
  kAnswer = 3,  // this, or why nothing
};

struct Hello {
  uint32_t worker = 0;  // whose engine it is
  std::string info;     // getConnInfo
};

struct Ask {
  uint64_t key = 0;  // of the region at its owner
};

struct Answer {
  uint64_t key = 0;
  Status status = Status::kOk;
  std::string reason;       // of another status, at most kMaxReasonBytes
  std::string public_data;  // of kOk: getPublicData
};

// Nothing: not one of ours.
std::optional<MessageKind> kind_of(std::span<const uint8_t> message) noexcept;

std::vector<uint8_t> encode(const Hello& hello);
std::vector<uint8_t> encode(const Ask& ask);
std::vector<uint8_t> encode(const Answer& answer);

std::optional<Hello> decode_hello(std::span<const uint8_t> message);
std::optional<Ask> decode_ask(std::span<const uint8_t> message);
std::optional<Answer> decode_answer(std::span<const uint8_t> message);

// The address of an instance, which peers learn before they connect: the plugin's name, and its carrier's address.
struct Address {
  std::string type;
  std::vector<uint8_t> carrier;
};
std::vector<uint8_t> encode(const Address& address);
std::optional<Address> decode_address(std::span<const uint8_t> bytes);

}  // namespace towline::nixl_net

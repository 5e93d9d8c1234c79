// Requests to the owner of memory and its answers, on a Unix socket: one packet each way for each allocation
// of a region. Everything is length-checked before it is used.
//
//   asker    ASK {owner's incarnation, region key, index}      ->
//   owner                                                      <-  ANSWER {status, part, how many parts} + fd
//
// Packets are little-endian and begin with {magic, version, type}; a later version may only append fields.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "towline/status.h"

namespace towline::cuda {

inline constexpr uint32_t kMagic = 0x55434c54;  // "TLCU"
inline constexpr uint16_t kVersion = 1;
inline constexpr uint32_t kMostParts = 65536;
inline constexpr size_t kMaxAnswerText = 512;

struct Ask {
  uint64_t incarnation[2] = {};
  uint64_t key = 0;
  uint32_t index = 0;
};

struct Answer {
  Status status = Status::kOk;
  std::string text;  // why not
  uint32_t parts = 0;
  uint64_t region_address = 0;
  uint64_t region_bytes = 0;
  Shared part;  // its descriptor, if any, comes beside the packet
};

std::vector<uint8_t> encode(const Ask& ask);
std::vector<uint8_t> encode(const Answer& answer);
std::optional<Ask> decode_ask(std::span<const uint8_t> packet);
std::optional<Answer> decode_answer(std::span<const uint8_t> packet);

// A region's token in the metadata: which GPU it is on, by a name that holds in every process.
struct Token {
  Uuid gpu = {};
};

std::vector<uint8_t> encode(const Token& token);
std::optional<Token> decode_token(std::span<const uint8_t> bytes);

}  // namespace towline::cuda

// Rules of a NIC that send the packets of one TCP connection to one receive queue, as the kernel's ethtool call takes and
// gives them. Pure functions over bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/socket_address.h"

namespace towline::tcpx {

struct FlowRule {
  SocketAddress from;  // the peer
  SocketAddress to;    // ours
  uint32_t queue = 0;

  // "10.0.0.1:5000 > 10.0.0.2:6000 queue 3", which parse_rule() reads.
  [[nodiscard]] std::string text() const;
  friend bool operator==(const FlowRule&, const FlowRule&) = default;
};
[[nodiscard]] std::optional<FlowRule> parse_rule(std::string_view text);

inline constexpr std::size_t kRuleBytes = 192;  // of a call about one rule
inline constexpr uint32_t kMostRules = 16384;   // of a list

// Calls about one rule, each into kRuleBytes of `out`. False: it can't be said: addresses of two families, or of none.
// Insert: the driver chooses the place.
[[nodiscard]] bool encode_insert_rule(const FlowRule& rule, std::span<uint8_t> out) noexcept;
void encode_delete_rule(uint32_t place, std::span<uint8_t> out) noexcept;
void encode_get_rule(uint32_t place, std::span<uint8_t> out) noexcept;
void encode_count_rules(std::span<uint8_t> out) noexcept;
// A call whose answer has room for `count` places.
[[nodiscard]] std::vector<uint8_t> encode_list_rules(uint32_t count);

// Reads the bytes that the call has filled.
[[nodiscard]] uint32_t decode_place(std::span<const uint8_t> call) noexcept;  // where a rule was put
[[nodiscard]] uint32_t decode_rule_count(std::span<const uint8_t> call) noexcept;
[[nodiscard]] std::vector<uint32_t> decode_places(std::span<const uint8_t> call);
// Empty: a rule of another shape, which is not ours.
[[nodiscard]] std::optional<FlowRule> decode_rule(std::span<const uint8_t> call) noexcept;

// The table by which other packets are spread over queues.
inline constexpr uint32_t kMostSpread = 4096;
void encode_count_spread(std::span<uint8_t> out) noexcept;  // into 8 bytes
[[nodiscard]] std::vector<uint8_t> encode_get_spread(uint32_t entries);
[[nodiscard]] std::vector<uint8_t> encode_set_spread(std::span<const uint32_t> queues);
[[nodiscard]] uint32_t decode_spread_count(std::span<const uint8_t> call) noexcept;
[[nodiscard]] std::vector<uint32_t> decode_spread(std::span<const uint8_t> call);

}  // namespace towline::tcpx

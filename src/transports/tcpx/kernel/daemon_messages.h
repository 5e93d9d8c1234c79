// Messages to the daemon that manages receive memory and flow rules on hosts with Google's kernels, as bytes. Each
// message is a length of 16 bits, the high byte first, and a Protocol Buffers message of few known fields.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "transports/tcpx/kernel/flow_rules.h"

namespace towline::tcpx {

inline constexpr std::size_t kMostDaemonBytes = 4096;  // of an answer

// With the length in front.
[[nodiscard]] std::string encode_daemon_text(std::string_view text);
// The rule for a connection to a GPU, by its PCI address. Empty if no rule can be made.
[[nodiscard]] std::string encode_daemon_rule(const FlowRule& rule, std::string_view gpu);

// Without the length. Empty: it is no such message.
[[nodiscard]] std::optional<std::string> decode_daemon_text(std::span<const uint8_t> message);
struct DaemonRule {
  FlowRule rule;  // whose queue the daemon chooses
  std::string gpu;
};
[[nodiscard]] std::optional<DaemonRule> decode_daemon_rule(std::span<const uint8_t> message);

// The bytes of a GPU's receive memory, from an answer's text.
[[nodiscard]] std::optional<uint64_t> decode_daemon_memory_bytes(std::string_view text) noexcept;

}  // namespace towline::tcpx

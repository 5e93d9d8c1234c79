#include "transports/tcpx/kernel/flow_rules.h"

#include <linux/ethtool.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

namespace towline::tcpx {
namespace {

static_assert(sizeof(ethtool_rxnfc) == kRuleBytes);

// ethtool_rxfh_indir, without the queues that follow it.
struct SpreadHead {
  uint32_t command;
  uint32_t size;
};

template <class Call>
Call read_call(std::span<const uint8_t> bytes) noexcept {
  Call call = {};
  std::memcpy(&call, bytes.data(), std::min(bytes.size(), sizeof call));
  return call;
}

template <class Call>
void write_call(const Call& call, std::span<uint8_t> out) noexcept {
  std::memcpy(out.data(), &call, std::min(out.size(), sizeof call));
}

sockaddr_in ipv4_of(const SocketAddress& address) noexcept {
  sockaddr_in result = {};
  std::memcpy(&result, address.get(), std::min<std::size_t>(address.size(), sizeof result));
  return result;
}

sockaddr_in6 ipv6_of(const SocketAddress& address) noexcept {
  sockaddr_in6 result = {};
  std::memcpy(&result, address.get(), std::min<std::size_t>(address.size(), sizeof result));
  return result;
}

// An IPv4 address that a socket of both families shows as IPv6 is IPv4 on the wire.
SocketAddress on_the_wire(const SocketAddress& address) noexcept {
  if (address.family() != AF_INET6) return address;
  const sockaddr_in6 six = ipv6_of(address);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) == 0) {
    sockaddr_in6 plain = {};
    plain.sin6_family = AF_INET6;
    plain.sin6_port = six.sin6_port;
    plain.sin6_addr = six.sin6_addr;
    return {reinterpret_cast<const sockaddr*>(&plain), sizeof plain};
  }
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof four.sin_addr);
  return {reinterpret_cast<const sockaddr*>(&four), sizeof four};
}

bool all_ones(const void* mask, std::size_t bytes) noexcept {
  const auto* const at = static_cast<const uint8_t*>(mask);
  return std::all_of(at, at + bytes, [](uint8_t byte) { return byte == 0xff; });
}

SocketAddress ipv4(uint32_t address, uint16_t port) noexcept {
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = address;
  four.sin_port = port;
  return {reinterpret_cast<const sockaddr*>(&four), sizeof four};
}

SocketAddress ipv6(const void* address, uint16_t port) noexcept {
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  std::memcpy(&six.sin6_addr, address, sizeof six.sin6_addr);
  six.sin6_port = port;
  return {reinterpret_cast<const sockaddr*>(&six), sizeof six};
}

ethtool_rxnfc about_rule(uint32_t command, uint32_t place) noexcept {
  ethtool_rxnfc call = {};
  call.cmd = command;
  call.fs.location = place;
  return call;
}

}  // namespace

std::string FlowRule::text() const { return fmt::format("{} > {} queue {}", from.text(), to.text(), queue); }

std::optional<FlowRule> parse_rule(std::string_view text) {
  const std::size_t arrow = text.find(" > ");
  const std::size_t word = text.find(" queue ");
  if (arrow == std::string_view::npos || word == std::string_view::npos || word < arrow) return std::nullopt;
  FlowRule rule;
  const std::string_view number = text.substr(word + 7);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rule.queue);
  if (error != std::errc{} || end != number.data() + number.size()) return std::nullopt;
  try {
    const auto from = numeric_address(parse_endpoint(text.substr(0, arrow)));
    const auto to = numeric_address(parse_endpoint(text.substr(arrow + 3, word - arrow - 3)));
    if (!from || !to || from->is_unix() || to->is_unix()) return std::nullopt;
    rule.from = on_the_wire(*from);
    rule.to = on_the_wire(*to);
  } catch (const core::Error&) {
    return std::nullopt;
  }
  return rule;
}

bool encode_insert_rule(const FlowRule& rule, std::span<uint8_t> out) noexcept {
  ethtool_rxnfc call = about_rule(ETHTOOL_SRXCLSRLINS, RX_CLS_LOC_ANY);
  call.fs.ring_cookie = rule.queue;
  const SocketAddress from = on_the_wire(rule.from);
  const SocketAddress to = on_the_wire(rule.to);
  if (from.family() == AF_INET && to.family() == AF_INET) {
    call.fs.flow_type = TCP_V4_FLOW;
    ethtool_tcpip4_spec& wanted = call.fs.h_u.tcp_ip4_spec;
    wanted.ip4src = ipv4_of(from).sin_addr.s_addr;
    wanted.psrc = ipv4_of(from).sin_port;
    wanted.ip4dst = ipv4_of(to).sin_addr.s_addr;
    wanted.pdst = ipv4_of(to).sin_port;
    ethtool_tcpip4_spec& mask = call.fs.m_u.tcp_ip4_spec;
    mask.ip4src = mask.ip4dst = UINT32_MAX;
    mask.psrc = mask.pdst = UINT16_MAX;
  } else if (from.family() == AF_INET6 && to.family() == AF_INET6) {
    call.fs.flow_type = TCP_V6_FLOW;
    ethtool_tcpip6_spec& wanted = call.fs.h_u.tcp_ip6_spec;
    const sockaddr_in6 source = ipv6_of(from);
    const sockaddr_in6 destination = ipv6_of(to);
    std::memcpy(wanted.ip6src, &source.sin6_addr, sizeof wanted.ip6src);
    std::memcpy(wanted.ip6dst, &destination.sin6_addr, sizeof wanted.ip6dst);
    wanted.psrc = source.sin6_port;
    wanted.pdst = destination.sin6_port;
    ethtool_tcpip6_spec& mask = call.fs.m_u.tcp_ip6_spec;
    std::memset(mask.ip6src, 0xff, sizeof mask.ip6src);
    std::memset(mask.ip6dst, 0xff, sizeof mask.ip6dst);
    mask.psrc = mask.pdst = UINT16_MAX;
  } else {
    return false;
  }
  write_call(call, out);
  return true;
}

void encode_delete_rule(uint32_t place, std::span<uint8_t> out) noexcept {
  write_call(about_rule(ETHTOOL_SRXCLSRLDEL, place), out);
}

void encode_get_rule(uint32_t place, std::span<uint8_t> out) noexcept {
  write_call(about_rule(ETHTOOL_GRXCLSRULE, place), out);
}

void encode_count_rules(std::span<uint8_t> out) noexcept {
  write_call(about_rule(ETHTOOL_GRXCLSRLCNT, 0), out);
}

std::vector<uint8_t> encode_list_rules(uint32_t count) {
  count = std::min(count, kMostRules);
  std::vector<uint8_t> call(sizeof(ethtool_rxnfc) + std::size_t{count} * sizeof(uint32_t));
  ethtool_rxnfc head = about_rule(ETHTOOL_GRXCLSRLALL, 0);
  head.rule_cnt = count;
  write_call(head, call);
  return call;
}

uint32_t decode_place(std::span<const uint8_t> call) noexcept {
  return read_call<ethtool_rxnfc>(call).fs.location;
}

uint32_t decode_rule_count(std::span<const uint8_t> call) noexcept {
  return std::min(read_call<ethtool_rxnfc>(call).rule_cnt, kMostRules);
}

std::vector<uint32_t> decode_places(std::span<const uint8_t> call) {
  constexpr std::size_t kHead = offsetof(ethtool_rxnfc, rule_locs);
  if (call.size() < sizeof(ethtool_rxnfc)) return {};
  const std::size_t room = (call.size() - kHead) / sizeof(uint32_t);
  std::vector<uint32_t> places(std::min<std::size_t>(decode_rule_count(call), room));
  if (!places.empty()) std::memcpy(places.data(), call.data() + kHead, places.size() * sizeof(uint32_t));
  return places;
}

std::optional<FlowRule> decode_rule(std::span<const uint8_t> call) noexcept {
  if (call.size() < sizeof(ethtool_rxnfc)) return std::nullopt;
  const auto rule = read_call<ethtool_rxnfc>(call).fs;
  FlowRule result;
  if (rule.ring_cookie > UINT16_MAX) return std::nullopt;  // dropped, or for a virtual function
  result.queue = static_cast<uint32_t>(rule.ring_cookie);
  if (rule.flow_type == TCP_V4_FLOW) {
    const ethtool_tcpip4_spec& mask = rule.m_u.tcp_ip4_spec;
    if (!all_ones(&mask, offsetof(ethtool_tcpip4_spec, tos))) return std::nullopt;
    const ethtool_tcpip4_spec& spec = rule.h_u.tcp_ip4_spec;
    result.from = ipv4(spec.ip4src, spec.psrc);
    result.to = ipv4(spec.ip4dst, spec.pdst);
    return result;
  }
  if (rule.flow_type == TCP_V6_FLOW) {
    const ethtool_tcpip6_spec& mask = rule.m_u.tcp_ip6_spec;
    if (!all_ones(&mask, offsetof(ethtool_tcpip6_spec, tclass))) return std::nullopt;
    const ethtool_tcpip6_spec& spec = rule.h_u.tcp_ip6_spec;
    result.from = ipv6(spec.ip6src, spec.psrc);
    result.to = ipv6(spec.ip6dst, spec.pdst);
    return result;
  }
  return std::nullopt;
}

// ---- spreading

void encode_count_spread(std::span<uint8_t> out) noexcept {
  write_call(SpreadHead{ETHTOOL_GRXFHINDIR, 0}, out);
}

std::vector<uint8_t> encode_get_spread(uint32_t entries) {
  entries = std::min(entries, kMostSpread);
  std::vector<uint8_t> call(sizeof(SpreadHead) + entries * sizeof(uint32_t));
  write_call(SpreadHead{ETHTOOL_GRXFHINDIR, entries}, call);
  return call;
}

std::vector<uint8_t> encode_set_spread(std::span<const uint32_t> queues) {
  std::vector<uint8_t> call = encode_get_spread(static_cast<uint32_t>(queues.size()));
  write_call(SpreadHead{ETHTOOL_SRXFHINDIR, static_cast<uint32_t>(queues.size())}, call);
  const std::size_t room = std::min(queues.size_bytes(), call.size() - sizeof(SpreadHead));
  if (room != 0) std::memcpy(call.data() + sizeof(SpreadHead), queues.data(), room);
  return call;
}

uint32_t decode_spread_count(std::span<const uint8_t> call) noexcept {
  return std::min(read_call<SpreadHead>(call).size, kMostSpread);
}

std::vector<uint32_t> decode_spread(std::span<const uint8_t> call) {
  if (call.size() < sizeof(SpreadHead)) return {};
  const std::size_t room = (call.size() - sizeof(SpreadHead)) / sizeof(uint32_t);
  std::vector<uint32_t> queues(std::min<std::size_t>(decode_spread_count(call), room));
  if (!queues.empty())
    std::memcpy(queues.data(), call.data() + sizeof(SpreadHead), queues.size() * sizeof(uint32_t));
  return queues;
}

}  // namespace towline::tcpx

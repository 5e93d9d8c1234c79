#include "transports/tcpx/kernel/nic.h"

#include <array>

#include <cerrno>

#include "base/error.h"

namespace towline::tcpx {
namespace {

constexpr std::size_t kRequestBytes = 8192;
constexpr std::size_t kDatagramBytes = 64u << 10;
constexpr int kMostDatagrams = 4096;  // of one answer

}  // namespace

Nic::Nic(Kernel& kernel, std::string interface) : kernel_(kernel), interface_(std::move(interface)) {
  number_ = kernel_.interface_number(interface_);
  if (number_ == 0)
    fail(Status::kNotFound, "there is no network interface \"{}\" in this network namespace", interface_);
}

// ---- netlink

void Nic::ask(Netlink& netlink, std::span<const uint8_t> request, const std::string& what, const Each& each) {
  if (request.empty()) fail(Status::kInvalidArgument, "{}: the request is too long", what);
  netlink.send(request);
  std::vector<uint8_t> buffer(kDatagramBytes);
  for (int i = 0; i < kMostDatagrams; ++i) {
    std::span<const uint8_t> datagram(buffer.data(), netlink.receive(buffer));
    NetlinkReply reply;
    while (next_reply(datagram, reply)) {
      if (reply.sequence != sequence_) continue;  // somebody else's
      NetlinkEnd end;
      if (!decode_end(reply, end)) {
        each(generic_attributes(reply));
        continue;
      }
      if (end.error == 0) return;
      if (end.text.empty()) fail_errno(end.error, "{}", what);
      fail_errno(end.error, "{}: {}", what, end.text);
    }
  }
  fail(Status::kProtocol, "{}: the kernel's answer has no end", what);
}

uint16_t Nic::family(Netlink& netlink, const char* name, const char* since) {
  std::array<uint8_t, 128> buffer;
  uint16_t found = 0;
  try {
    ask(netlink, encode_find_family(buffer, ++sequence_, name), "looking up a netlink family",
        [&](auto attributes) { found = decode_family(attributes).value_or(found); });
  } catch (const core::Error& error) {
    if (error.code() != Status::kNotFound) throw;
  }
  if (found == 0)
    fail(Status::kUnsupported, "the kernel has no netlink family \"{}\", which came with Linux {}", name,
         since);
  return found;
}

Binding Nic::bound(std::unique_ptr<Netlink> netlink, std::span<const uint8_t> request,
                   const std::string& what) {
  std::optional<uint32_t> number;
  ask(*netlink, request, what, [&](auto attributes) { number = decode_binding(attributes); });
  if (!number) fail(Status::kProtocol, "{}: the kernel gave no number", what);
  return {std::move(netlink), *number};
}

Binding Nic::bind_receive(std::span<const uint32_t> queues, int dma_buf) {
  auto netlink = kernel_.open_netlink();
  const uint16_t netdev = family(*netlink, "netdev", "6.12");
  std::vector<uint8_t> buffer(kRequestBytes);
  std::string names;
  for (const uint32_t queue : queues) names += fmt::format("{}{}", names.empty() ? "" : ", ", queue);
  const auto request = encode_bind_receive(buffer, netdev, ++sequence_, number_, queues, dma_buf);
  return bound(std::move(netlink), request,
               fmt::format("binding memory to receive queues {} of {}", names, interface_));
}

Binding Nic::bind_send(int dma_buf) {
  auto netlink = kernel_.open_netlink();
  const uint16_t netdev = family(*netlink, "netdev", "6.16");
  std::array<uint8_t, 128> buffer;
  const auto request = encode_bind_send(buffer, netdev, ++sequence_, number_, dma_buf);
  return bound(std::move(netlink), request, fmt::format("binding memory to send from by {}", interface_));
}

std::vector<Queue> Nic::queues() {
  const auto netlink = kernel_.open_netlink();
  const uint16_t netdev = family(*netlink, "netdev", "6.8");
  std::array<uint8_t, 128> buffer;
  std::vector<Queue> found;
  ask(*netlink, encode_list_queues(buffer, netdev, ++sequence_, number_), "listing queues of " + interface_,
      [&](auto attributes) {
        if (const auto queue = decode_queue(attributes); queue && queue->receives) found.push_back(*queue);
      });
  return found;
}

std::vector<PagePool> Nic::pools() {
  const auto netlink = kernel_.open_netlink();
  const uint16_t netdev = family(*netlink, "netdev", "6.8");
  std::array<uint8_t, 128> buffer;
  std::vector<PagePool> found;
  ask(*netlink, encode_list_pools(buffer, netdev, ++sequence_), "listing pools", [&](auto attributes) {
    if (const auto pool = decode_pool(attributes); pool && pool->interface == number_) found.push_back(*pool);
  });
  return found;
}

Rings Nic::rings() {
  const auto netlink = kernel_.open_netlink();
  const uint16_t ethtool = family(*netlink, "ethtool", "5.6");
  std::array<uint8_t, 128> buffer;
  Rings rings;
  ask(*netlink, encode_get_rings(buffer, ethtool, ++sequence_, interface_), "reading rings of " + interface_,
      [&](auto attributes) { rings = decode_rings(attributes).value_or(rings); });
  return rings;
}

void Nic::set_rings(const Rings& rings) {
  const auto netlink = kernel_.open_netlink();
  const uint16_t ethtool = family(*netlink, "ethtool", "5.6");
  std::array<uint8_t, 128> buffer;
  ask(*netlink, encode_set_rings(buffer, ethtool, ++sequence_, interface_, rings),
      fmt::format("turning header split {} at {}", rings.split == Split::kOn ? "on" : "off", interface_),
      [](auto) {});
}

// ---- ethtool

void Nic::call(std::span<uint8_t> bytes, const std::string& what) {
  const int error = kernel_.ethtool(interface_, bytes);
  if (error != 0) fail_errno(error, "{} of {}", what, interface_);
}

void Nic::insert_rule(const FlowRule& rule) {
  std::array<uint8_t, kRuleBytes> bytes = {};
  if (!encode_insert_rule(rule, bytes))
    fail(Status::kInvalidArgument, "no flow rule can be made for {}", rule.text());
  call(bytes, fmt::format("adding the flow rule \"{}\"", rule.text()));
}

std::vector<std::pair<uint32_t, FlowRule>> Nic::rules() {
  std::array<uint8_t, kRuleBytes> bytes = {};
  encode_count_rules(bytes);
  call(bytes, "counting flow rules");
  std::vector<uint8_t> list = encode_list_rules(decode_rule_count(bytes));
  call(list, "listing flow rules");
  std::vector<std::pair<uint32_t, FlowRule>> found;
  for (const uint32_t place : decode_places(list)) {
    bytes.fill(0);
    encode_get_rule(place, bytes);
    if (kernel_.ethtool(interface_, bytes) != 0) continue;  // deleted since
    if (const auto rule = decode_rule(bytes)) found.emplace_back(place, *rule);
  }
  return found;
}

void Nic::delete_rule(uint32_t place) {
  std::array<uint8_t, kRuleBytes> bytes = {};
  encode_delete_rule(place, bytes);
  call(bytes, fmt::format("deleting flow rule {}", place));
}

std::vector<uint32_t> Nic::spread() {
  std::array<uint8_t, 8> count = {};
  encode_count_spread(count);
  call(count, "reading the size of the indirection table");
  std::vector<uint8_t> table = encode_get_spread(decode_spread_count(count));
  call(table, "reading the indirection table");
  return decode_spread(table);
}

void Nic::set_spread(std::span<const uint32_t> queues) {
  std::vector<uint8_t> table = encode_set_spread(queues);
  call(table, "writing the indirection table");
}

}  // namespace towline::tcpx

// Fuzzes decoders of kernels' and drivers' answers: control messages, netlink datagrams, rules of a NIC. The first byte
// chooses. Nothing outside of the input is read, and decoded values encode to the same again.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "support/fuzz_accepted.h"
#include "transports/tcpx/kernel/control_messages.h"
#include "transports/tcpx/kernel/daemon_messages.h"
#include "transports/tcpx/kernel/flow_rules.h"
#include "transports/tcpx/kernel/netdev_messages.h"

namespace towline::tcpx {
namespace {

void check(bool good) {
  if (!good) std::abort();
}

// A byte of how much was received, in units of 256, one of flags, then the messages.
void fragments(const Dialect& dialect, std::span<const uint8_t> bytes) {
  if (bytes.size() < 2) return;
  std::array<Fragment, 8> out;
  const std::size_t returned = std::size_t{bytes[0]} * 256;
  const Arrived arrived = decode_fragments(dialect, bytes.subspan(2), bytes[1], returned, 7, out);
  check(arrived.count <= out.size() && arrived.bytes <= returned);
  uint64_t sum = 0;
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < arrived.count; ++i) {
    sum += out[i].bytes;
    if (!out[i].linear) tokens.push_back(out[i].token);
  }
  if (arrived.wrong == nullptr) {
    check(sum == returned && arrived.bytes == returned);
    if (!tokens.empty()) fuzz::accepted();
  }
  std::sort(tokens.begin(), tokens.end());
  for (std::span<const uint32_t> left = tokens; !left.empty();) {
    const std::size_t before = left.size();
    const TokenBatch batch = next_batch(left);
    check(left.size() < before && batch.count <= kMostRanges && batch.tokens <= kMostTokensReturned);
  }
}

void netlink(std::span<const uint8_t> datagram) {
  NetlinkReply reply;
  for (int i = 0; i < 64 && next_reply(datagram, reply); ++i) {
    NetlinkEnd end;
    if (decode_end(reply, end)) {
      check(end.error >= 0 && end.text.size() <= reply.payload.size());
      fuzz::accepted();
      continue;
    }
    const auto attributes = generic_attributes(reply);
    const auto queue = decode_queue(attributes);
    const auto pool = decode_pool(attributes);
    const auto rings = decode_rings(attributes);
    if (rings) check(rings->split <= Split::kOn);
    if (queue || pool || rings || decode_family(attributes) || decode_binding(attributes)) fuzz::accepted();
  }
}

void rules(std::span<const uint8_t> call) {
  (void)decode_place(call);
  for (const uint32_t place : decode_places(call)) (void)place;
  check(decode_spread(call).size() <= kMostSpread);
  const auto rule = decode_rule(call);
  if (!rule) return;
  std::array<uint8_t, kRuleBytes> again = {};
  check(encode_insert_rule(*rule, again));
  const auto back = decode_rule(again);
  check(back.has_value() && *back == *rule);
  const auto read = parse_rule(rule->text());
  // An IPv4 address in IPv6's clothes is printed, and so read, as IPv4.
  check(read.has_value() && read->queue == rule->queue && read->text() == rule->text());
  fuzz::accepted();
}

}  // namespace
}  // namespace towline::tcpx

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace towline::tcpx;
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes{data + 1, size - 1};
  switch (data[0] % 6) {
    case 0:
      fragments(kUpstream, bytes);
      break;
    case 1:
      fragments(kLegacy, bytes);
      break;
    case 2:
      netlink(bytes);
      break;
    case 3:
      rules(bytes);
      break;
    case 4:
      if (const auto rule = parse_rule({reinterpret_cast<const char*>(bytes.data()), bytes.size()})) {
        const auto again = parse_rule(rule->text());
        if (again && *again == *rule) towline::fuzz::accepted();
      }
      break;
    case 5:
      if (const auto text = decode_daemon_text(bytes)) {
        (void)decode_daemon_memory_bytes(*text);
        towline::fuzz::accepted();
      }
      if (const auto rule = decode_daemon_rule(bytes))
        if (!encode_daemon_rule(rule->rule, rule->gpu).empty()) towline::fuzz::accepted();
      break;
  }
  return 0;
}

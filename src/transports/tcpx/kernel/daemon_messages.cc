#include "transports/tcpx/kernel/daemon_messages.h"

#include <linux/ethtool.h>

#include "base/error.h"
#include "base/wire.h"

namespace towline::tcpx {
namespace {

constexpr uint32_t kVarint = 0;
constexpr uint32_t kBytes = 2;
constexpr std::size_t kMostFields = 64;

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, field << 3 | kVarint);
  put_varint(out, value);
}

void put(std::string& out, uint32_t field, std::string_view bytes) {
  put_varint(out, field << 3 | kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

std::string framed(const std::string& message) {
  if (message.size() > UINT16_MAX) return {};
  std::string out = {static_cast<char>(message.size() >> 8), static_cast<char>(message.size())};
  return out + message;
}

struct Field {
  uint32_t number = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

std::optional<uint64_t> take_varint(WireReader& reader) noexcept {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = reader.u8();
    if (!reader.ok()) return std::nullopt;
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// Calls `each` for every field. False: it is no message.
template <class Each>
bool read_fields(std::string_view bytes, Each each) {
  WireReader reader({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  for (std::size_t i = 0; reader.remaining() != 0; ++i) {
    const auto tag = take_varint(reader);
    const auto value = take_varint(reader);
    if (!tag || !value || i == kMostFields || *tag >> 3 > UINT32_MAX) return false;
    Field field = {static_cast<uint32_t>(*tag >> 3), *value, {}};
    if ((*tag & 7) == kBytes) {
      const auto data = reader.raw(*value);
      if (!reader.ok()) return false;
      field.bytes = {reinterpret_cast<const char*>(data.data()), data.size()};
    } else if ((*tag & 7) != kVarint) {
      return false;
    }
    each(field);
  }
  return reader.ok();
}

std::string encode_address(const SocketAddress& address) {
  std::string out;
  put(out, 1, address.endpoint().host);
  put(out, 2, uint64_t{address.port()});
  return out;
}

SocketAddress decode_address(std::string_view bytes) {
  Endpoint endpoint;
  if (!read_fields(bytes, [&](const Field& field) {
        if (field.number == 1) endpoint.host = field.bytes;
        if (field.number == 2) endpoint.port = static_cast<uint16_t>(field.value);
      }))
    return {};
  try {
    return numeric_address(endpoint).value_or(SocketAddress{});
  } catch (const core::Error&) {
    return {};
  }
}

std::string_view as_text(std::span<const uint8_t> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string encode_daemon_text(std::string_view text) {
  std::string message;
  put(message, 1, text);
  return framed(message);
}

std::string encode_daemon_rule(const FlowRule& rule, std::string_view gpu) {
  const auto plain = parse_rule(rule.text());  // as it is on the wire
  if (!plain || plain->from.family() != plain->to.family()) return {};
  std::string ntuple;
  put(ntuple, 1, static_cast<uint64_t>(plain->from.family() == AF_INET ? TCP_V4_FLOW : TCP_V6_FLOW));
  put(ntuple, 2, encode_address(plain->from));
  put(ntuple, 3, encode_address(plain->to));
  std::string request;
  put(request, 1, ntuple);
  put(request, 3, gpu);
  std::string message;
  put(message, 2, request);
  return framed(message);
}

std::optional<std::string> decode_daemon_text(std::span<const uint8_t> message) {
  std::optional<std::string> text;
  const bool good = read_fields(as_text(message), [&](const Field& field) {
    if (field.number == 1) text = std::string(field.bytes);
  });
  return good ? text : std::nullopt;
}

std::optional<DaemonRule> decode_daemon_rule(std::span<const uint8_t> message) {
  DaemonRule result;
  bool good = true;
  const auto ntuple = [&](const Field& field) {
    if (field.number == 2) result.rule.from = decode_address(field.bytes);
    if (field.number == 3) result.rule.to = decode_address(field.bytes);
  };
  const auto request = [&](const Field& field) {
    if (field.number == 1) good = read_fields(field.bytes, ntuple) && good;
    if (field.number == 3) result.gpu = field.bytes;
  };
  good = read_fields(as_text(message),
                     [&](const Field& field) {
                       if (field.number == 2) good = read_fields(field.bytes, request) && good;
                     }) &&
         good;
  if (!good || result.rule.from.family() == AF_UNSPEC || result.rule.from.family() != result.rule.to.family())
    return std::nullopt;
  return result;
}

// A C structure: a descriptor that means nothing here, four bytes of padding, the size, the alignment.
std::optional<uint64_t> decode_daemon_memory_bytes(std::string_view text) noexcept {
  WireReader reader({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  reader.skip(8);
  const uint64_t bytes = reader.u64();
  reader.skip(8);
  if (!reader.finished() || bytes == 0 || bytes > uint64_t{1} << 40) return std::nullopt;
  return bytes;
}

}  // namespace towline::tcpx

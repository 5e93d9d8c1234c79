#include "transports/tcp/wire.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/copy/crc32c.h"
#include "base/wire.h"

namespace towline::tcp {
namespace {

constexpr uint8_t kAddressVersion = 1;
constexpr uint8_t kLandingVersion = 1;
constexpr std::size_t kMaxEndpointBytes = 256;

template <class Fields>
std::vector<uint8_t> pack_packet(uint32_t magic, Fields&& fields) {
  std::vector<uint8_t> packet;
  WireWriter writer(packet, kMaxPacketBytes);
  writer.u32(magic);
  writer.u8(kMajor);
  writer.u8(kMinor);
  writer.u16(0);
  fields(writer);
  const auto bytes = static_cast<uint16_t>(packet.size() + kChecksumBytes);
  std::memcpy(packet.data() + 6, &bytes, sizeof bytes);
  writer.u32(crc32c(packet));
  return packet;
}

// The fields between prefix and checksum.
const char* open_packet(std::span<const uint8_t> packet, std::span<const uint8_t>& fields) noexcept {
  if (packet.size() < kPrefixBytes + kChecksumBytes) return "it is too short";
  fields = packet.subspan(kPrefixBytes, packet.size() - kPrefixBytes - kChecksumBytes);
  WireReader trailer(packet.last(kChecksumBytes));
  if (trailer.u32() != crc32c(packet.first(packet.size() - kChecksumBytes))) return "its checksum is wrong";
  if (packet[4] != kMajor) return "it is of another version";
  return nullptr;
}

void put_id(WireWriter& writer, const Id& id) {
  writer.u64(id.hi);
  writer.u64(id.lo);
}

Id get_id(WireReader& reader) noexcept {
  const uint64_t hi = reader.u64();
  return {hi, reader.u64()};
}

bool is_name(std::string_view name) noexcept {
  return !name.empty() && name.find('\0') == std::string_view::npos;
}

}  // namespace

towline_identity Hello::identity() const noexcept {
  towline_identity identity = self;
  identity.name = name.c_str();
  return identity;
}

std::vector<uint8_t> pack(const Hello& hello) {
  return pack_packet(kHelloMagic, [&](WireWriter& writer) {
    put_id(writer, hello.target);
    put_id(writer, hello.connection);
    writer.u16(hello.lane);
    writer.u32(hello.worker);
    for (const uint64_t value :
         {hello.self.incarnation[0], hello.self.incarnation[1], hello.self.host[0], hello.self.host[1],
          hello.self.pid, hello.self.pid_namespace, hello.self.start_time, hello.self.network_namespace}) {
      writer.u64(value);
    }
    writer.u32(hello.self.caller_driven);
    writer.u32(hello.self.workers);
    writer.string16(std::string_view(hello.name).substr(0, kMaxNameBytes));
    writer.string16(std::string_view(hello.target_name).substr(0, kMaxNameBytes));
    writer.u32(hello.features);
  });
}

std::vector<uint8_t> pack(const Reply& reply) {
  return pack_packet(kReplyMagic, [&](WireWriter& writer) {
    writer.i32(reply.status);
    put_id(writer, reply.incarnation);
    writer.string16(std::string_view(reply.name).substr(0, kMaxNameBytes));
    writer.string16(std::string_view(reply.text).substr(0, kMaxReplyText));
    writer.u32(reply.features);
  });
}

const char* unpack(std::span<const uint8_t> packet, Hello& hello) {
  std::span<const uint8_t> fields;
  if (const char* problem = open_packet(packet, fields); problem != nullptr) return problem;
  WireReader reader(fields);
  hello.target = get_id(reader);
  hello.connection = get_id(reader);
  hello.lane = reader.u16();
  hello.worker = reader.u32();
  for (uint64_t* value :
       {&hello.self.incarnation[0], &hello.self.incarnation[1], &hello.self.host[0], &hello.self.host[1],
        &hello.self.pid, &hello.self.pid_namespace, &hello.self.start_time, &hello.self.network_namespace}) {
    *value = reader.u64();
  }
  hello.self.caller_driven = reader.u32();
  hello.self.workers = reader.u32();
  hello.name = reader.string16(kMaxNameBytes);
  hello.target_name.clear();
  if (reader.remaining() != 0) hello.target_name = reader.string16(kMaxNameBytes);
  hello.features = reader.remaining() != 0 ? reader.u32() : 0;
  if (!reader.ok()) return "it is cut off";
  const bool nobody = hello.self.incarnation[0] == 0 && hello.self.incarnation[1] == 0;
  if (nobody || hello.connection.is_none() || !is_name(hello.name)) return "it does not say who connects";
  if (hello.lane >= kMaxLanes || hello.self.caller_driven > 1 || hello.self.workers == 0)
    return "a field is out of range";
  return nullptr;
}

const char* unpack(std::span<const uint8_t> packet, Reply& reply) {
  std::span<const uint8_t> fields;
  if (const char* problem = open_packet(packet, fields); problem != nullptr) return problem;
  WireReader reader(fields);
  reply.status = reader.i32();
  reply.incarnation = get_id(reader);
  reply.name = reader.string16(kMaxNameBytes);
  reply.text = reader.string16(kMaxReplyText);
  reply.features = reader.remaining() != 0 ? reader.u32() : 0;
  if (!reader.ok()) return "it is cut off";
  const bool anonymous = !is_name(reply.name) || reply.incarnation.is_none();
  if (reply.status == TOWLINE_OK && anonymous) return "it does not say who answers";
  if (reply.status > 0 || reply.status < TOWLINE_INTERNAL) return "its status is unknown";
  for (char& c : reply.text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  }
  return nullptr;
}

std::vector<uint8_t> pack_address(std::span<const std::string> endpoints) {
  std::vector<uint8_t> address;
  WireWriter writer(address, kMaxAddressBytes);
  writer.u8(kAddressVersion);
  for (const std::string& endpoint : endpoints) {
    if (endpoint.size() <= kMaxEndpointBytes && address.size() + 2 + endpoint.size() <= kMaxAddressBytes) {
      writer.string16(endpoint);
    }
  }
  return address;
}

const char* unpack_address(std::span<const uint8_t> address, std::vector<std::string>& endpoints) {
  WireReader reader(address);
  if (reader.u8() != kAddressVersion || address.size() > kMaxAddressBytes) return "it is of another version";
  while (reader.remaining() != 0) endpoints.emplace_back(reader.string16(kMaxEndpointBytes));
  if (!reader.ok()) return "it is cut off";
  return endpoints.empty() ? "it names no endpoint" : nullptr;
}

std::vector<uint8_t> pack(const LandingToken& token) {
  std::vector<uint8_t> bytes;
  WireWriter writer(bytes, TOWLINE_MAX_TOKEN_BYTES);
  writer.u8(kLandingVersion);
  writer.u32(token.most_frame_bytes);
  return bytes;
}

const char* unpack(std::span<const uint8_t> bytes, LandingToken& token) {
  WireReader reader(bytes);
  if (reader.u8() < kLandingVersion) return "it is of another version";
  token.most_frame_bytes = reader.u32();
  if (!reader.ok()) return "it is cut off";
  return token.most_frame_bytes == 0 ? "it takes frames of no bytes" : nullptr;
}

}  // namespace towline::tcp

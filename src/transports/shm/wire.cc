#include "transports/shm/wire.h"

#include "base/wire.h"
#include "base/wire_status.h"

namespace towline::shm {

namespace {

constexpr uint8_t kAddressVersion = 1;
constexpr size_t kMaxSocketNameBytes = 107;  // of sockaddr_un::sun_path, less its NUL

void put_header(WireWriter& writer, PacketType type) {
  writer.u32(kMagic);
  writer.u16(kVersion);
  writer.u16(static_cast<uint16_t>(type));
}

void put_proof(WireWriter& writer, const Proof& proof) {
  writer.u64(proof.cookie_address);
  writer.u64(proof.probe_address);
}

Proof get_proof(WireReader& reader) noexcept {
  Proof proof;
  proof.cookie_address = reader.u64();
  proof.probe_address = reader.u64();
  return proof;
}

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
};

Header get_header(WireReader& reader) noexcept {
  Header header{};
  header.magic = reader.u32();
  header.version = reader.u16();
  header.type = reader.u16();
  return header;
}

// Opens a packet of the wanted type; fails the reader otherwise.
Header open_packet(WireReader& reader, PacketType type) noexcept {
  const Header header = get_header(reader);
  if (header.magic != kMagic || header.version == 0 || header.type != static_cast<uint16_t>(type))
    reader.fail();
  return header;
}

bool complete(const WireReader& reader, const Header& header) noexcept {
  return header.version > kVersion ? reader.ok() : reader.finished();
}

std::string_view bounded(const std::string& text) { return std::string_view(text).substr(0, kMaxTextBytes); }

}  // namespace

std::vector<uint8_t> encode(const Hello& hello) {
  std::vector<uint8_t> packet;
  WireWriter writer{packet, kMaxPacketBytes};
  put_header(writer, PacketType::kHello);
  for (const uint64_t word : hello.target) writer.u64(word);
  const towline_identity& identity = hello.identity;
  for (const uint64_t word : identity.incarnation) writer.u64(word);
  for (const uint64_t word : identity.host) writer.u64(word);
  writer.u64(identity.pid);
  writer.u64(identity.pid_namespace);
  writer.u64(identity.start_time);
  writer.u64(identity.network_namespace);
  writer.u32(identity.caller_driven);
  writer.u32(identity.workers);
  writer.u32(hello.worker);
  writer.u32(hello.ring_bytes);
  put_proof(writer, hello.proof);
  writer.string16(std::string_view(hello.name).substr(0, kMaxNameBytes));
  writer.u64(hello.connection);
  writer.u32(hello.features);
  return packet;
}

std::vector<uint8_t> encode(const Welcome& welcome) {
  std::vector<uint8_t> packet;
  WireWriter writer{packet, kMaxPacketBytes};
  put_header(writer, PacketType::kWelcome);
  for (const uint64_t word : welcome.incarnation) writer.u64(word);
  writer.u32(welcome.worker);
  put_proof(writer, welcome.proof);
  writer.u32(welcome.features);
  return packet;
}

std::vector<uint8_t> encode(const Refuse& refuse) {
  std::vector<uint8_t> packet;
  WireWriter writer{packet, kMaxPacketBytes};
  put_header(writer, PacketType::kRefuse);
  writer.i32(static_cast<int32_t>(refuse.status));
  writer.string16(bounded(refuse.text));
  return packet;
}

std::vector<uint8_t> encode(const DescriptorRequest& request) {
  std::vector<uint8_t> packet;
  WireWriter writer{packet, kMaxPacketBytes};
  put_header(writer, PacketType::kDescriptorRequest);
  writer.u64(request.request);
  writer.u64(request.key);
  return packet;
}

std::vector<uint8_t> encode(const DescriptorAnswer& answer) {
  std::vector<uint8_t> packet;
  WireWriter writer{packet, kMaxPacketBytes};
  put_header(writer, PacketType::kDescriptorAnswer);
  writer.u64(answer.request);
  writer.i32(static_cast<int32_t>(answer.status));
  writer.u64(answer.address);
  writer.u64(answer.bytes);
  writer.u64(answer.file_offset);
  writer.string16(bounded(answer.text));
  return packet;
}

std::optional<PacketType> packet_type(std::span<const uint8_t> packet) noexcept {
  WireReader reader{packet};
  const Header header = get_header(reader);
  if (!reader.ok() || header.magic != kMagic || header.version == 0) return std::nullopt;
  return static_cast<PacketType>(header.type);
}

uint16_t packet_version(std::span<const uint8_t> packet) noexcept {
  WireReader reader{packet};
  const Header header = get_header(reader);
  return reader.ok() && header.magic == kMagic ? header.version : 0;
}

std::optional<Hello> decode_hello(std::span<const uint8_t> packet) {
  WireReader reader{packet};
  const Header header = open_packet(reader, PacketType::kHello);
  Hello hello;
  for (uint64_t& word : hello.target) word = reader.u64();
  towline_identity& identity = hello.identity;
  for (uint64_t& word : identity.incarnation) word = reader.u64();
  for (uint64_t& word : identity.host) word = reader.u64();
  identity.pid = reader.u64();
  identity.pid_namespace = reader.u64();
  identity.start_time = reader.u64();
  identity.network_namespace = reader.u64();
  identity.caller_driven = reader.u32();
  identity.workers = reader.u32();
  hello.worker = reader.u32();
  hello.ring_bytes = reader.u32();
  hello.proof = get_proof(reader);
  hello.name = reader.string16(kMaxNameBytes);
  if (header.version >= 2) hello.connection = reader.u64();
  hello.features = header.version >= 3 ? reader.u32() : 0;
  if (hello.name.find('\0') != std::string::npos || identity.workers == 0 || hello.worker >= identity.workers)
    reader.fail();
  if (!complete(reader, header)) return std::nullopt;
  return hello;
}

std::optional<Welcome> decode_welcome(std::span<const uint8_t> packet) {
  WireReader reader{packet};
  const Header header = open_packet(reader, PacketType::kWelcome);
  Welcome welcome;
  for (uint64_t& word : welcome.incarnation) word = reader.u64();
  welcome.worker = reader.u32();
  welcome.proof = get_proof(reader);
  welcome.features = header.version >= 3 ? reader.u32() : 0;
  if (!complete(reader, header)) return std::nullopt;
  return welcome;
}

std::optional<Refuse> decode_refuse(std::span<const uint8_t> packet) {
  WireReader reader{packet};
  const Header header = open_packet(reader, PacketType::kRefuse);
  Refuse refuse;
  refuse.status = error_from_wire(reader.i32());
  refuse.text = reader.string16(kMaxTextBytes);
  if (!complete(reader, header)) return std::nullopt;
  return refuse;
}

std::optional<DescriptorRequest> decode_descriptor_request(std::span<const uint8_t> packet) {
  WireReader reader{packet};
  const Header header = open_packet(reader, PacketType::kDescriptorRequest);
  DescriptorRequest request;
  request.request = reader.u64();
  request.key = reader.u64();
  if (!complete(reader, header)) return std::nullopt;
  return request;
}

std::optional<DescriptorAnswer> decode_descriptor_answer(std::span<const uint8_t> packet) {
  WireReader reader{packet};
  const Header header = open_packet(reader, PacketType::kDescriptorAnswer);
  DescriptorAnswer answer;
  answer.request = reader.u64();
  answer.status = status_from_wire(reader.i32());
  answer.address = reader.u64();
  answer.bytes = reader.u64();
  answer.file_offset = reader.u64();
  answer.text = reader.string16(kMaxTextBytes);
  if (!complete(reader, header)) return std::nullopt;
  return answer;
}

std::vector<uint8_t> encode(const Address& address) {
  std::vector<uint8_t> bytes;
  WireWriter writer{bytes, TOWLINE_MAX_ADDRESS_BYTES};
  writer.u8(kAddressVersion);
  writer.u8(address.abstract ? 1 : 0);
  writer.string16(address.name);
  return bytes;
}

std::optional<Address> decode_address(std::span<const uint8_t> bytes) {
  WireReader reader{bytes};
  const uint8_t version = reader.u8();
  const uint8_t abstract = reader.u8();
  Address address;
  address.abstract = abstract == 1;
  address.name = reader.string16(kMaxSocketNameBytes);
  if (version == 0 || abstract > 1 || address.name.empty() || address.name.find('\0') != std::string::npos)
    reader.fail();
  if (version > kAddressVersion ? !reader.ok() : !reader.finished()) return std::nullopt;
  return address;
}

}  // namespace towline::shm

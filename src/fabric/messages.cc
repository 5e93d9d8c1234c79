#include "fabric/messages.h"

#include <cstring>

#include "base/wire.h"
#include "base/wire_status.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kControlMagic = 0x31'43'46'54;  // "TFC1"
constexpr uint32_t kAddressMagic = 0x31'41'46'54;  // "TFA1"
constexpr uint32_t kMemoryMagic = 0x31'4d'46'54;   // "TFM1"
constexpr std::size_t kMaxKindBytes = 64;
constexpr uint32_t kMaxRecordBytes = 1 << 20;

std::vector<uint8_t> copy(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

void put(WireWriter& out, const Id& id) {
  out.u64(id.hi);
  out.u64(id.lo);
}

Id take_id(WireReader& in) noexcept {
  Id id;
  id.hi = in.u64();
  id.lo = in.u64();
  return id;
}

}  // namespace

ControlBytes encode(const ControlMessage& message) noexcept {
  ControlBytes bytes;
  WireWriter out{std::span<uint8_t>{bytes.data}};
  out.u32(kControlMagic);
  out.u8(kControlVersion);
  out.u8(static_cast<uint8_t>(message.type));
  put(out, message.from);
  put(out, message.to);
  out.u64(message.connection);
  switch (message.type) {
    case ControlType::kConnect:
      out.u8(message.initiator_rail);
      out.u8(message.responder_rail);
      out.u32(message.record_bytes);
      out.bytes16(message.endpoint);
      break;
    case ControlType::kAccept:
      out.u32(message.credits);
      out.u32(message.record_bytes);
      out.bytes16(message.endpoint);
      break;
    case ControlType::kRefuse:
      out.i32(static_cast<int32_t>(message.status));
      break;
    case ControlType::kClosed:
      out.u64(message.seen_base);
      for (const uint64_t word : message.seen_bits) out.u64(word);
      break;
    case ControlType::kClose:
    case ControlType::kPing:
    case ControlType::kPong:
      break;
  }
  bytes.size = out.ok() ? out.size() : 0;
  return bytes;
}

std::optional<ControlMessage> decode_control(std::span<const uint8_t> bytes) noexcept {
  if (bytes.size() > kMaxControlBytes) return std::nullopt;
  WireReader in{bytes};
  if (in.u32() != kControlMagic || in.u8() != kControlVersion) return std::nullopt;
  ControlMessage message;
  const uint8_t type = in.u8();
  if (type < static_cast<uint8_t>(ControlType::kConnect) || type > static_cast<uint8_t>(ControlType::kPong))
    return std::nullopt;
  message.type = static_cast<ControlType>(type);
  message.from = take_id(in);
  message.to = take_id(in);
  message.connection = in.u64();
  switch (message.type) {
    case ControlType::kConnect:
      message.initiator_rail = in.u8();
      message.responder_rail = in.u8();
      message.record_bytes = in.u32();
      message.endpoint = in.bytes16();
      break;
    case ControlType::kAccept:
      message.credits = in.u32();
      message.record_bytes = in.u32();
      message.endpoint = in.bytes16();
      break;
    case ControlType::kRefuse:
      message.status = error_from_wire(in.i32());
      break;
    case ControlType::kClosed:
      message.seen_base = in.u64();
      for (uint64_t& word : message.seen_bits) word = in.u64();
      break;
    case ControlType::kClose:
    case ControlType::kPing:
    case ControlType::kPong:
      break;
  }
  if (!in.ok() || in.remaining() != 0 || message.from.is_none()) return std::nullopt;
  if (message.initiator_rail >= kMaxRails || message.responder_rail >= kMaxRails) return std::nullopt;
  if (message.endpoint.size() > kMaxEndpointBytes || message.record_bytes > kMaxRecordBytes)
    return std::nullopt;
  return message;
}

std::vector<uint8_t> encode(const EngineAddress& address) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes, kMaxAddressBytes};
  out.u32(kAddressMagic);
  out.u8(kControlVersion);
  put(out, address.engine);
  out.u8(static_cast<uint8_t>(address.rails.size()));
  for (const RailAddress& rail : address.rails) {
    out.string16(rail.kind);
    out.bytes16(rail.address);
  }
  return out.ok() ? bytes : std::vector<uint8_t>{};
}

std::optional<EngineAddress> decode_address(std::span<const uint8_t> bytes) {
  if (bytes.size() > kMaxAddressBytes) return std::nullopt;
  WireReader in{bytes};
  if (in.u32() != kAddressMagic || in.u8() != kControlVersion) return std::nullopt;
  EngineAddress address;
  address.engine = take_id(in);
  const uint8_t rails = in.u8();
  if (rails == 0 || rails > kMaxRails) return std::nullopt;
  for (uint8_t i = 0; i < rails; ++i) {
    const auto kind = in.string16();
    const auto rail = in.bytes16();
    if (!in.ok() || kind.size() > kMaxKindBytes || rail.size() > kMaxEndpointBytes) return std::nullopt;
    address.rails.push_back({std::string{kind}, copy(rail)});
  }
  if (!in.ok() || in.remaining() != 0 || address.engine.is_none()) return std::nullopt;
  return address;
}

std::vector<uint8_t> encode(const RemoteMemory& memory) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u32(kMemoryMagic);
  out.u8(kControlVersion);
  out.u8(static_cast<uint8_t>((memory.readable ? 1 : 0) | (memory.writable ? 2 : 0)));
  out.u64(memory.address);
  out.u64(memory.bytes);
  out.u8(static_cast<uint8_t>(memory.rails));
  for (uint32_t i = 0; i < memory.rails; ++i) {
    out.u64(memory.keys[i].key);
    out.u64(memory.keys[i].shift);
  }
  return bytes;
}

std::optional<RemoteMemory> decode_memory(std::span<const uint8_t> bytes) {
  WireReader in{bytes};
  if (in.u32() != kMemoryMagic || in.u8() != kControlVersion) return std::nullopt;
  RemoteMemory memory;
  const uint8_t access = in.u8();
  memory.readable = (access & 1) != 0;
  memory.writable = (access & 2) != 0;
  memory.address = in.u64();
  memory.bytes = in.u64();
  memory.rails = in.u8();
  if (access > 3 || memory.rails == 0 || memory.rails > kMaxRails) return std::nullopt;
  for (uint32_t i = 0; i < memory.rails; ++i) {
    memory.keys[i].key = in.u64();
    memory.keys[i].shift = in.u64();
  }
  if (!in.ok() || in.remaining() != 0 || memory.bytes > UINT64_MAX - memory.address) return std::nullopt;
  return memory;
}

std::optional<RecordHeader> decode_record(std::span<const uint8_t> bytes) noexcept {
  RecordHeader header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kRecordMagic || header.message_bytes != bytes.size() - sizeof header)
    return std::nullopt;
  constexpr uint16_t kKnown = kRecordCounts | kRecordMessage | kRecordCredit;
  if (header.flags == 0 || (header.flags & ~kKnown) != 0) return std::nullopt;
  if ((header.flags & kRecordCredit) != 0 && header.flags != kRecordCredit) return std::nullopt;
  if (header.message_bytes != 0 && (header.flags & kRecordMessage) == 0) return std::nullopt;
  if (header.flags != kRecordCredit && header.sequence == 0) return std::nullopt;
  return header;
}

}  // namespace towline::fabric

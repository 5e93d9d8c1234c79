#include "transports/cuda/wire.h"

#include <algorithm>

#include "base/wire.h"
#include "base/wire_status.h"
#include "towline/plugin/v1.h"

namespace towline::cuda {

namespace {

constexpr size_t kMaxPacketBytes = 1024;
constexpr uint8_t kTokenVersion = 1;

enum class Type : uint16_t { kAsk = 1, kAnswer = 2 };

void put_header(WireWriter& writer, Type type) {
  writer.u32(kMagic);
  writer.u16(kVersion);
  writer.u16(static_cast<uint16_t>(type));
}

// The sender's version; fails the reader when it is not a packet of this type.
uint16_t open_packet(WireReader& reader, Type type) noexcept {
  const uint32_t magic = reader.u32();
  const uint16_t version = reader.u16();
  if (reader.u16() != static_cast<uint16_t>(type) || magic != kMagic || version == 0) reader.fail();
  return version;
}

bool complete(const WireReader& reader, uint16_t version) noexcept {
  return version > kVersion ? reader.ok() : reader.finished();
}

}  // namespace

std::vector<uint8_t> encode(const Ask& ask) {
  std::vector<uint8_t> packet;
  WireWriter writer{packet, kMaxPacketBytes};
  put_header(writer, Type::kAsk);
  for (const uint64_t word : ask.incarnation) writer.u64(word);
  writer.u64(ask.key);
  writer.u32(ask.index);
  return packet;
}

std::optional<Ask> decode_ask(std::span<const uint8_t> packet) {
  WireReader reader{packet};
  const uint16_t version = open_packet(reader, Type::kAsk);
  Ask ask;
  for (uint64_t& word : ask.incarnation) word = reader.u64();
  ask.key = reader.u64();
  ask.index = reader.u32();
  if (!complete(reader, version)) return std::nullopt;
  return ask;
}

std::vector<uint8_t> encode(const Answer& answer) {
  std::vector<uint8_t> packet;
  WireWriter writer{packet, kMaxPacketBytes};
  put_header(writer, Type::kAnswer);
  writer.i32(static_cast<int32_t>(answer.status));
  writer.string16(std::string_view(answer.text).substr(0, kMaxAnswerText));
  writer.u32(answer.parts);
  writer.u64(answer.region_address);
  writer.u64(answer.region_bytes);
  const Shared& part = answer.part;
  writer.u8(static_cast<uint8_t>(part.sharing));
  writer.u64(part.address);
  writer.u64(part.bytes);
  writer.u64(part.id);
  writer.u64(part.file_offset);
  writer.raw(part.handle);
  return packet;
}

std::optional<Answer> decode_answer(std::span<const uint8_t> packet) {
  WireReader reader{packet};
  const uint16_t version = open_packet(reader, Type::kAnswer);
  Answer answer;
  answer.status = status_from_wire(reader.i32());
  answer.text = reader.string16(kMaxAnswerText);
  answer.parts = reader.u32();
  answer.region_address = reader.u64();
  answer.region_bytes = reader.u64();
  Shared& part = answer.part;
  const uint8_t sharing = reader.u8();
  part.address = reader.u64();
  part.bytes = reader.u64();
  part.id = reader.u64();
  part.file_offset = reader.u64();
  const std::span<const uint8_t> handle = reader.raw(part.handle.size());
  if (handle.size() == part.handle.size()) std::copy(handle.begin(), handle.end(), part.handle.begin());
  const bool shared = sharing >= static_cast<uint8_t>(Sharing::kDescriptor) &&
                      sharing <= static_cast<uint8_t>(Sharing::kHostFile) && part.bytes != 0 &&
                      part.address + part.bytes > part.address && answer.parts != 0 &&
                      answer.parts <= kMostParts && part.file_offset + part.bytes > part.file_offset &&
                      (sharing != static_cast<uint8_t>(Sharing::kHostFile) || answer.parts == 1);
  part.sharing = shared ? static_cast<Sharing>(sharing) : Sharing::kNone;
  if (answer.status == Status::kOk && !shared) reader.fail();
  if (!complete(reader, version)) return std::nullopt;
  return answer;
}

std::vector<uint8_t> encode(const Token& token) {
  std::vector<uint8_t> bytes;
  WireWriter writer{bytes, TOWLINE_MAX_TOKEN_BYTES};
  writer.u8(kTokenVersion);
  writer.raw(token.gpu);
  return bytes;
}

std::optional<Token> decode_token(std::span<const uint8_t> bytes) {
  WireReader reader{bytes};
  const uint8_t version = reader.u8();
  Token token;
  const std::span<const uint8_t> gpu = reader.raw(token.gpu.size());
  if (version == 0 || !(version > kTokenVersion ? reader.ok() : reader.finished())) return std::nullopt;
  std::copy(gpu.begin(), gpu.end(), token.gpu.begin());
  return token;
}

}  // namespace towline::cuda

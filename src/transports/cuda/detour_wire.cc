#include "transports/cuda/detour_wire.h"

#include <algorithm>
#include <cstring>

#include "base/wire.h"
#include "base/wire_status.h"
#include "towline/plugin/v1.h"
#include "transports/cuda/piece_copier.h"

namespace towline::cuda {

namespace {

constexpr uint16_t kVersion = 1;
constexpr std::size_t kMaxText = 512;

enum class Type : uint16_t { kMove = 1, kMoved = 2 };

constexpr std::size_t kHeaderBytes = kDetourMark.size() + 4;
static_assert(kHeaderBytes + 64 + kMostStretches * sizeof(Stretch) <= TOWLINE_MAX_MESSAGE_BYTES);
static_assert(sizeof(Stretch) == 24);

void put_header(WireWriter& writer, Type type) {
  writer.raw(kDetourMark);
  writer.u16(kVersion);
  writer.u16(static_cast<uint16_t>(type));
}

uint16_t open_message(WireReader& reader, Type type) noexcept {
  const std::span<const uint8_t> mark = reader.raw(kDetourMark.size());
  const uint16_t version = reader.u16();
  if (!std::equal(mark.begin(), mark.end(), kDetourMark.begin(), kDetourMark.end()) || version == 0 ||
      reader.u16() != static_cast<uint16_t>(type))
    reader.fail();
  return version;
}

bool complete(const WireReader& reader, uint16_t version) noexcept {
  return version > kVersion ? reader.ok() : reader.finished();
}

}  // namespace

bool is_detour_message(std::span<const uint8_t> message) noexcept {
  return message.size() >= kHeaderBytes &&
         std::equal(kDetourMark.begin(), kDetourMark.end(), message.begin());
}

bool is_move(std::span<const uint8_t> message) noexcept {
  uint16_t type = 0;
  std::memcpy(&type, message.data() + kDetourMark.size() + 2, sizeof type);
  return type == static_cast<uint16_t>(Type::kMove);
}

void encode(const Move& move, std::span<const Stretch> stretches, std::vector<uint8_t>& out) {
  out.clear();
  WireWriter writer{out, TOWLINE_MAX_MESSAGE_BYTES};
  put_header(writer, Type::kMove);
  writer.u64(move.number);
  writer.u8(move.to_owner ? 1 : 0);
  writer.u64(move.pool.key);
  writer.u64(move.pool.address);
  writer.u64(move.pool.bytes);
  writer.u64(move.offset);
  writer.u32(static_cast<uint32_t>(stretches.size()));
  writer.raw({reinterpret_cast<const uint8_t*>(stretches.data()), stretches.size_bytes()});
}

bool decode(std::span<const uint8_t> message, Move& move, std::vector<Stretch>& stretches) {
  WireReader reader{message};
  const uint16_t version = open_message(reader, Type::kMove);
  move.number = reader.u64();
  const uint8_t to_owner = reader.u8();
  move.to_owner = to_owner == 1;
  move.pool = {reader.u64(), reader.u64(), reader.u64()};
  move.offset = reader.u64();
  const uint32_t count = reader.u32();
  if (!reader.ok() || to_owner > 1 || count == 0 || count > kMostStretches) return false;
  const std::span<const uint8_t> bytes = reader.raw(count * sizeof(Stretch));
  if (!complete(reader, version)) return false;
  stretches.resize(count);
  std::memcpy(stretches.data(), bytes.data(), bytes.size());
  uint64_t total = 0;
  for (const Stretch& stretch : stretches) {
    if (stretch.bytes == 0 || stretch.bytes > kDetourSlotBytes) return false;
    if (stretch.address + stretch.bytes < stretch.address) return false;
    total += stretch.bytes;
  }
  return total <= kDetourSlotBytes && move.offset <= move.pool.bytes &&
         total <= move.pool.bytes - move.offset;
}

void encode(const Moved& moved, std::vector<uint8_t>& out) {
  out.clear();
  WireWriter writer{out, TOWLINE_MAX_MESSAGE_BYTES};
  put_header(writer, Type::kMoved);
  writer.u64(moved.number);
  writer.i32(static_cast<int32_t>(moved.status));
  writer.i32(moved.code);
  writer.string16(std::string_view(moved.text).substr(0, kMaxText));
}

bool decode(std::span<const uint8_t> message, Moved& moved) {
  WireReader reader{message};
  const uint16_t version = open_message(reader, Type::kMoved);
  moved.number = reader.u64();
  moved.status = status_from_wire(reader.i32());
  moved.code = reader.i32();
  moved.text = reader.string16(kMaxText);
  return complete(reader, version);
}

}  // namespace towline::cuda

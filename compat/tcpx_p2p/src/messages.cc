#include "messages.h"

#include <cstring>

namespace towline_tcpx {
namespace {

constexpr uint32_t kMagic = 0x32785054;  // "TPx2"

// As it lies in a notice, little-endian.
struct Wire {
  uint32_t magic;
  uint32_t type;
  int32_t status;
  uint32_t reserved;
  uint64_t id, memory, offset, bytes, tag;
  int64_t gpu;
};
static_assert(sizeof(Wire) == 64);

}  // namespace

std::string encode(const Message& message) {
  const Wire wire = {kMagic,         static_cast<uint32_t>(message.type),
                     message.status, 0,
                     message.id,     message.memory,
                     message.offset, message.bytes,
                     message.tag,    message.gpu};
  std::string bytes(reinterpret_cast<const char*>(&wire), sizeof wire);
  bytes.append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  return bytes;
}

std::optional<Message> decode(std::span<const std::byte> bytes) noexcept {
  Wire wire;
  if (bytes.size() < sizeof wire) return std::nullopt;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.magic != kMagic || wire.type < 1 || wire.type > 8 || wire.reserved != 0) return std::nullopt;
  return Message{static_cast<MessageType>(wire.type),
                 wire.status,
                 wire.id,
                 wire.memory,
                 wire.offset,
                 wire.bytes,
                 wire.tag,
                 wire.gpu,
                 bytes.subspan(sizeof wire)};
}

}  // namespace towline_tcpx

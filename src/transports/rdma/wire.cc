#include "transports/rdma/wire.h"

#include <algorithm>
#include <cstring>

#include "base/wire.h"
#include "base/wire_status.h"

namespace towline::rdma {
namespace {

constexpr std::size_t kHeaderBytes = 5;
constexpr std::size_t kMaxKindBytes = 256;
constexpr std::size_t kMaxKinds = fabric::kMaxRails;
constexpr uint8_t kAddressVersion = 1;

std::vector<uint8_t> begin(MessageKind kind) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u32(kMagic);
  out.u8(static_cast<uint8_t>(kind));
  return bytes;
}

std::span<const uint8_t> rest_of(std::span<const uint8_t> message) noexcept {
  return message.size() < kHeaderBytes ? std::span<const uint8_t>{} : message.subspan(kHeaderBytes);
}

}  // namespace

std::optional<MessageKind> kind_of(std::span<const uint8_t> message) noexcept {
  WireReader in{message};
  const uint32_t magic = in.u32();
  const uint8_t kind = in.u8();
  if (!in.ok() || magic != kMagic) return std::nullopt;
  return static_cast<MessageKind>(kind);
}

std::vector<uint8_t> encode_hello(const fabric::EngineAddress& engine) {
  std::vector<uint8_t> bytes = begin(MessageKind::kHello);
  const std::vector<uint8_t> address = fabric::encode(engine);
  bytes.insert(bytes.end(), address.begin(), address.end());
  return bytes;
}

std::vector<uint8_t> encode(const Ask& ask) {
  std::vector<uint8_t> bytes = begin(MessageKind::kAsk);
  WireWriter{bytes}.u64(ask.key);
  return bytes;
}

std::vector<uint8_t> encode(const Answer& answer) {
  std::vector<uint8_t> bytes = begin(MessageKind::kAnswer);
  WireWriter out{bytes};
  out.u64(answer.key);
  out.i32(static_cast<int32_t>(answer.status));
  out.string16(std::string_view{answer.reason}.substr(0, kMaxReasonBytes));
  if (answer.status == Status::kOk) out.bytes16(fabric::encode(answer.memory));
  return bytes;
}

std::vector<uint8_t> encode_poll() { return begin(MessageKind::kPoll); }

std::vector<uint8_t> encode_control(std::span<const uint8_t> message) {
  std::vector<uint8_t> bytes = begin(MessageKind::kControl);
  bytes.insert(bytes.end(), message.begin(), message.end());
  return bytes;
}

std::optional<fabric::EngineAddress> decode_hello(std::span<const uint8_t> message) {
  return fabric::decode_address(rest_of(message));
}

std::optional<Ask> decode_ask(std::span<const uint8_t> message) {
  WireReader in{rest_of(message)};
  const Ask ask{in.u64()};
  if (!in.ok() || in.remaining() != 0) return std::nullopt;
  return ask;
}

std::optional<Answer> decode_answer(std::span<const uint8_t> message) {
  WireReader in{rest_of(message)};
  Answer answer;
  answer.key = in.u64();
  const int32_t status = in.i32();
  if (status > 0) return std::nullopt;
  answer.status = status_from_wire(status);
  answer.reason = in.string16();
  if (!in.ok() || answer.reason.size() > kMaxReasonBytes) return std::nullopt;
  if (answer.status == Status::kOk) {
    const auto memory = fabric::decode_memory(in.bytes16());
    if (!memory) return std::nullopt;
    answer.memory = *memory;
  }
  if (!in.ok() || in.remaining() != 0) return std::nullopt;
  return answer;
}

std::span<const uint8_t> control_in(std::span<const uint8_t> message) noexcept { return rest_of(message); }

std::vector<uint8_t> encode(const Address& address) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u8(kAddressVersion);
  out.u8(static_cast<uint8_t>(address.kinds.size()));
  for (const std::string& kind : address.kinds) out.string16(kind);
  out.bytes16(address.carrier);
  return bytes;
}

std::optional<Address> decode_address(std::span<const uint8_t> bytes) {
  WireReader in{bytes};
  if (in.u8() != kAddressVersion) return std::nullopt;
  const uint8_t kinds = in.u8();
  if (kinds == 0 || kinds > kMaxKinds) return std::nullopt;
  Address address;
  for (uint8_t i = 0; i < kinds; ++i) {
    const std::string_view kind = in.string16();
    if (!in.ok() || kind.empty() || kind.size() > kMaxKindBytes) return std::nullopt;
    address.kinds.emplace_back(kind);
  }
  const auto carrier = in.bytes16();
  if (!in.ok()) return std::nullopt;  // later versions may say more
  address.carrier.assign(carrier.begin(), carrier.end());
  return address;
}

}  // namespace towline::rdma

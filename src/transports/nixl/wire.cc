#include "transports/nixl/wire.h"

#include "base/wire.h"
#include "base/wire_status.h"

namespace towline::nixl_net {

namespace {

constexpr std::size_t kHeaderBytes = 5;
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

std::vector<uint8_t> encode(const Hello& hello) {
  std::vector<uint8_t> bytes = begin(MessageKind::kHello);
  WireWriter out{bytes};
  out.u32(hello.worker);
  out.string16(hello.info);
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
  if (answer.status == Status::kOk) out.string16(answer.public_data);
  return bytes;
}

std::optional<Hello> decode_hello(std::span<const uint8_t> message) {
  WireReader in{rest_of(message)};
  Hello hello;
  hello.worker = in.u32();
  hello.info = in.string16(kMaxInfoBytes);
  if (!in.finished()) return std::nullopt;
  return hello;
}

std::optional<Ask> decode_ask(std::span<const uint8_t> message) {
  WireReader in{rest_of(message)};
  const Ask ask{in.u64()};
  if (!in.finished()) return std::nullopt;
  return ask;
}

std::optional<Answer> decode_answer(std::span<const uint8_t> message) {
  WireReader in{rest_of(message)};
  Answer answer;
  answer.key = in.u64();
  const int32_t status = in.i32();
  if (status > 0) return std::nullopt;
  answer.status = status_from_wire(status);
  answer.reason = in.string16(kMaxReasonBytes);
  if (answer.status == Status::kOk) answer.public_data = in.string16(kMaxInfoBytes);
  if (!in.finished()) return std::nullopt;
  return answer;
}

std::vector<uint8_t> encode(const Address& address) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u8(kAddressVersion);
  out.string16(address.type);
  out.bytes16(address.carrier);
  return bytes;
}

std::optional<Address> decode_address(std::span<const uint8_t> bytes) {
  WireReader in{bytes};
  if (in.u8() != kAddressVersion) return std::nullopt;
  Address address;
  address.type = in.string16(kMaxTypeBytes);
  const auto carrier = in.bytes16();
  if (!in.ok() || address.type.empty()) return std::nullopt;  // later versions may say more
  address.carrier.assign(carrier.begin(), carrier.end());
  return address;
}

}  // namespace towline::nixl_net

#include "gpu/symmetric_wire.h"

#include <algorithm>
#include <cstring>

#include "base/wire.h"

namespace towline::cuda {
namespace {

constexpr uint64_t kNoticeMagic = 0x7473796d6d000004;
constexpr uint64_t kHelloMagic = 0x7473796d68000001;
constexpr std::size_t kMaxSocketBytes = 96;

}  // namespace

std::vector<uint8_t> encode(const PieceNotice& notice) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u64(kNoticeMagic);
  out.u64(notice.key);
  out.u64(notice.bytes);
  out.u64(notice.offset);
  out.u64(notice.length);
  out.u8(notice.lent ? 1 : 0);
  put(out, notice.host);
  out.raw(std::span<const uint8_t>{reinterpret_cast<const uint8_t*>(notice.gpu.data()), notice.gpu.size()});
  out.u8(notice.partitioned ? 1 : 0);
  out.string16(notice.socket);
  return bytes;
}

std::optional<PieceNotice> decode_piece_notice(std::span<const uint8_t> bytes) {
  WireReader in{bytes};
  if (in.u64() != kNoticeMagic) return std::nullopt;
  PieceNotice notice;
  notice.key = in.u64();
  notice.bytes = in.u64();
  notice.offset = in.u64();
  notice.length = in.u64();
  const uint8_t lent = in.u8();
  notice.lent = lent != 0;
  notice.host = decode_host_identity(in);
  if (const auto uuid = in.raw(notice.gpu.size()); uuid.size() == notice.gpu.size())
    std::memcpy(notice.gpu.data(), uuid.data(), uuid.size());
  const uint8_t partitioned = in.u8();
  notice.partitioned = partitioned != 0;
  const std::string_view socket = in.string16(kMaxSocketBytes);
  if (!in.finished() || lent > 1 || partitioned > 1 || socket.empty() ||
      socket.find('\0') != std::string_view::npos)
    return std::nullopt;
  if (notice.offset > notice.bytes || notice.length > notice.bytes - notice.offset) return std::nullopt;
  notice.socket = socket;
  return notice;
}

std::vector<uint8_t> encode(const PieceHello& hello) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u64(kHelloMagic);
  out.u64(hello.key);
  out.u32(hello.rank);
  return bytes;
}

std::optional<PieceHello> decode_piece_hello(std::span<const uint8_t> bytes) noexcept {
  WireReader in{bytes};
  const bool known = in.u64() == kHelloMagic;
  PieceHello hello;
  hello.key = in.u64();
  hello.rank = in.u32();
  if (!known || !in.finished()) return std::nullopt;
  return hello;
}

}  // namespace towline::cuda

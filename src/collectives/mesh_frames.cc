#include "collectives/mesh_frames.h"

#include <algorithm>

#include "base/wire.h"
#include "base/wire_status.h"

namespace towline::collectives {
namespace {

constexpr uint32_t kMeshMagic = 0x4c574f54;
constexpr uint16_t kMeshVersion = 3;
constexpr size_t kMostTextBytes = 4096;
constexpr size_t kMostAwaited = 4096;

}  // namespace

std::vector<uint8_t> encode(const MeshHello& hello) {
  std::vector<uint8_t> bytes;
  WireWriter out(bytes);
  out.u32(kMeshMagic);
  out.u16(kMeshVersion);
  out.u8(hello.kind);
  out.u32(hello.rank);
  out.u64(hello.secret.hi);
  out.u64(hello.secret.lo);
  return bytes;
}

std::optional<MeshHello> decode_hello(std::span<const uint8_t> bytes) {
  WireReader in(bytes);
  const bool known = in.u32() == kMeshMagic && in.u16() == kMeshVersion;
  MeshHello hello;
  hello.kind = in.u8();
  hello.rank = in.u32();
  hello.secret.hi = in.u64();
  hello.secret.lo = in.u64();
  if (!known || !in.finished()) return std::nullopt;
  return hello;
}

std::vector<uint8_t> encode_control(uint8_t type, const Breakage& reason) {
  std::vector<uint8_t> frame;
  WireWriter out(frame);
  out.u8(type);
  out.i32(static_cast<int32_t>(reason.status));
  out.string16(std::string_view(reason.text).substr(0, kMostTextBytes));
  const size_t awaited = std::min(reason.awaited.size(), kMostAwaited);
  out.u16(static_cast<uint16_t>(awaited));
  for (size_t i = 0; i < awaited; ++i) out.i32(reason.awaited[i]);
  return frame;
}

std::optional<ControlFrame> decode_control(std::span<const uint8_t> bytes, size_t& taken) {
  WireReader in(bytes);
  ControlFrame frame;
  frame.type = in.u8();
  const int32_t status = in.i32();
  frame.reason.status = status < 0 ? error_from_wire(status) : Status::kOk;
  frame.reason.text = in.string16(kMostTextBytes);
  const size_t awaited = in.u16();
  for (size_t i = 0; i < awaited && in.ok(); ++i) frame.reason.awaited.push_back(in.i32());
  if (!in.ok()) return std::nullopt;
  taken += in.position();
  return frame;
}

}  // namespace towline::collectives

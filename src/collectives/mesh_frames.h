// The mesh's wire format, apart from pipes and messages: the hello of a connection, and the frames of control
// connections.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/id.h"
#include "collectives/breaker.h"

namespace towline::collectives {

// The first bytes of a connection.
struct MeshHello {
  uint8_t kind = 0;
  uint32_t rank = 0;
  Id secret;  // of the communicator, from its store
};
constexpr size_t kMeshHelloBytes = 4 + 2 + 1 + 4 + 16;

std::vector<uint8_t> encode(const MeshHello& hello);
// Nothing if the bytes are not a hello of this version.
std::optional<MeshHello> decode_hello(std::span<const uint8_t> bytes);

// A rank proposes a reason to break, rank 0 announces it; or a rank announces that it leaves; or rank 0 asks ranks that wait
// for whom.
constexpr uint8_t kMeshBreak = 1;
constexpr uint8_t kMeshLeave = 2;
constexpr uint8_t kMeshHurry = 3;
struct ControlFrame {
  uint8_t type = 0;
  Breakage reason;
};

std::vector<uint8_t> encode_control(uint8_t type, const Breakage& reason);
// Returns the frame at the front of `bytes` and adds its size to `taken`; nothing if it is incomplete.
std::optional<ControlFrame> decode_control(std::span<const uint8_t> bytes, size_t& taken);

}  // namespace towline::collectives

// What ranks write to each other's mesh beside lanes and messages: the hello of a connection, and the frames
// of control connections.
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
  Id secret;  // of the communicator, by its store
};
constexpr size_t kMeshHelloBytes = 4 + 2 + 1 + 4 + 16;

std::vector<uint8_t> encode(const MeshHello& hello);
// Nothing where the bytes are no hello of this version.
std::optional<MeshHello> decode_hello(std::span<const uint8_t> bytes);

// A rank proposes why to break, rank 0 announces it; or says that it goes.
constexpr uint8_t kMeshBreak = 1;
constexpr uint8_t kMeshLeave = 2;
struct ControlFrame {
  uint8_t type = 0;
  Breakage reason;
};

std::vector<uint8_t> encode_control(uint8_t type, const Breakage& reason);
// The frame at the front of `bytes`, and its size added to `taken`; nothing where it is not whole.
std::optional<ControlFrame> decode_control(std::span<const uint8_t> bytes, size_t& taken);

}  // namespace towline::collectives

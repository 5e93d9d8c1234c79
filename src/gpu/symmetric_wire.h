// Messages of ranks about their pieces of symmetric memory: a notice on the board, and a hello that brings the
// piece itself to a rank of another process. Strangers can write both, so every decoder is bounded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/os/host_identity.h"
#include "gpu/kernel_device.h"

namespace towline::cuda {

// A rank's to all others.
struct PieceNotice {
  uint64_t key = 0;  // of the piece in its process
  uint64_t bytes = 0;
  uint64_t offset = 0;  // of the part that the others may use
  uint64_t length = 0;
  bool lent = false;  // only ranks of its process and GPU can use it
  HostIdentity host;
  Uuid gpu = {};
  bool partitioned = false;  // Gpu::partitioned
  std::string socket;        // the name in the abstract namespace where it takes hellos
};
std::vector<uint8_t> encode(const PieceNotice& notice);
// Null: another build's, or none. The part lies in the piece.
std::optional<PieceNotice> decode_piece_notice(std::span<const uint8_t> bytes);

// Goes with a descriptor of the piece.
struct PieceHello {
  uint64_t key = 0;
  uint32_t rank = 0;
};
std::vector<uint8_t> encode(const PieceHello& hello);
std::optional<PieceHello> decode_piece_hello(std::span<const uint8_t> bytes) noexcept;

}  // namespace towline::cuda

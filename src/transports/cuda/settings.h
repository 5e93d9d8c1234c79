// The settings "cuda.*".
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "towline/plugin/backend.hpp"

namespace towline::cuda {

// When bytes take two steps, through host memory of both sides (detour.h).
enum class DetourUse : uint8_t {
  kAuto,    // where no GPU here reaches the memory
  kAlways,  // also where one does
  kNever,
};

// Host memory of this process that the application has not pinned.
enum class PinUse : uint8_t {
  kAuto,   // the first post goes through the pool, and a thread pins it from the second on (host_pin.h)
  kFirst,  // pinned by the first transfer that needs it; memory that can't be pinned uses the pool
  kNever,  // it goes through the pool
};

// Whether copies or a model have priority while the model's memory is copied to the host.
enum class Beside : uint8_t {
  kAuto,   // found by trying (way_choice.h)
  kModel,  // copies do not slow it down
  kCopy,   // copies take the kernel, at the link's full rate
};

inline constexpr uint32_t kGatherBlocks = 4;  // keep the copy engine busy
inline constexpr uint32_t kPacedBlocks = 1;   // whose stores to host memory stall no other kernel
inline constexpr uint32_t kPullBlocks = 2;  // keep the link to the host busy: more loads at once stall others

const char* beside_name(Beside beside) noexcept;

struct Settings {
  uint32_t blocks = 0;             // thread blocks of a copy to another GPU at most
  uint32_t read_blocks = 0;        // the same of one from it
  uint32_t host_blocks = 0;        // the same where one side is host memory
  uint64_t copy_engine_bytes = 0;  // contiguous ranges of so many bytes go without a thread block
  bool direct = true;              // memory of the same process is used as it lies, not mapped once more
  int32_t gpu = -1;                // that moves bytes where a plan's local side names none; -1: found out

  bool after_default_stream = false;  // copies are ordered with the GPU's default stream

  DetourUse detour = DetourUse::kAuto;
  PinUse pin = PinUse::kAuto;
  uint32_t host_threads = 0;  // that copy to and from the pool beside the worker
  Beside beside = Beside::kCopy;
  ReserveWish reserve;
  uint64_t landing_bytes = 0;  // pinned for other backends' connections (landing.h), over all of them

  // Throws plugin::Failure naming the setting.
  static Settings read(const plugin::Host& host);
};

}  // namespace towline::cuda

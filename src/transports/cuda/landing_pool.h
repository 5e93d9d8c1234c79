// Memory on a GPU that payload arrives in, for other backends (towline/plugin/landing.h).
#pragma once

#include <towline/plugin/landing.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "gpu/device.h"
#include "gpu/pinned_memory.h"
#include "transports/cuda/piece_copier.h"

namespace towline::cuda {

class LandingPool {
 public:
  // `given`: a descriptor of memory on that GPU which another process has exported; -1: new memory, as a dma-buf.
  // Throws Error. `device` outlives it.
  LandingPool(Device& device, uint32_t gpu, uint64_t bytes, int given);
  LandingPool(const LandingPool&) = delete;
  LandingPool& operator=(const LandingPool&) = delete;

  [[nodiscard]] uint32_t gpu() const noexcept { return gpu_; }
  [[nodiscard]] uint64_t address() const noexcept { return address_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool holds(const towline_landing_piece& piece) const noexcept {
    return piece.address >= address_ && piece.bytes <= bytes_ &&
           piece.address - address_ <= bytes_ - piece.bytes;
  }
  [[nodiscard]] towline_landing_pool_info info() const noexcept;

  // Copies pieces of it to host memory, side by side, and waits for the GPU. Any thread. Throws Error where a piece is
  // not in it.
  Code read(std::span<const towline_landing_piece> pieces, uint8_t* to);

 private:
  static constexpr uint64_t kBounceBytes = 256u << 10;

  Code read_chunk(std::span<const towline_landing_piece>& pieces, uint64_t& skip, uint8_t*& to);

  Device& device_;
  const uint32_t gpu_;
  std::unique_ptr<DmaMemory> own_;
  std::unique_ptr<Mapped> imported_;
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
  std::mutex mutex_;
  const PinnedMemory bounce_;
  PieceCopier copier_;
  Code broken_ = 0;  // nothing is read any more
};

}  // namespace towline::cuda

// Memory of a worker, of each kind that applications use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <towline/towline.hpp>

#include "gpu_memory.h"

namespace tool {

enum class BufferKind {
  kShared,   // allocated by Towline: peers on this host map it
  kPrivate,  // anonymous, as from an allocator: peers on this host go through the kernel
  kVram,     // of a GPU
};

// "shared", "private" or "vram"; throws Failure otherwise.
[[nodiscard]] BufferKind parse_buffer_kind(const std::string& text);

struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* address) const;
};

// Page-aligned zeroed memory, every page present. GPU memory is filled and checked through a copy in host
// memory.
class Buffer {
 public:
  // `gpu`: as in GpuMemory.
  Buffer(BufferKind kind, uint64_t bytes, int gpu = 0);

  // In host memory.
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }

  // The memory that peers reach, and its address.
  [[nodiscard]] towline::MemoryView view() const;
  [[nodiscard]] uint64_t address() const;
  // Copies between the host copy and the GPU; does nothing for host memory.
  void push(uint64_t offset, uint64_t bytes);
  void pull(uint64_t offset, uint64_t bytes);

 private:
  std::unique_ptr<GpuMemory> gpu_;
  std::optional<towline::Memory> shared_;
  std::unique_ptr<std::byte, Unmap> private_;
  std::byte* data_ = nullptr;
  uint64_t size_;
};

// Describes memory of this agent or of a peer whose region begins at or before the address.
struct Place {
  towline::Kind kind = towline::Kind::kDram;
  uint64_t device = 0;
};
[[nodiscard]] Place place_of(const towline::Peer& peer, uint64_t address);

}  // namespace tool

// Memory of a worker, of either sort that applications have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <towline/towline.hpp>

namespace tool {

enum class BufferKind {
  kShared,   // allocated by Towline: peers on this host map it
  kPrivate,  // anonymous, as an allocator gives it: peers on this host go through the kernel
};

// "shared" or "private"; throws Failure otherwise.
[[nodiscard]] BufferKind parse_buffer_kind(const std::string& text);

struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* address) const;
};

// Page-aligned zeroed memory, every page present.
class Buffer {
 public:
  Buffer(BufferKind kind, uint64_t bytes);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::optional<towline::Memory> shared_;
  std::unique_ptr<std::byte, Unmap> private_;
  std::byte* data_ = nullptr;
  uint64_t size_;
};

// Bytes of memory that can be had without swapping, by /proc/meminfo; 0 when it does not say.
[[nodiscard]] uint64_t available_memory_bytes();

}  // namespace tool

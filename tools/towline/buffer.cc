#include "buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <towline/limits.h>

#include <cerrno>
#include <cstring>

#include "failure.h"
#include "units.h"

namespace tool {

BufferKind parse_buffer_kind(const std::string& text) {
  if (text == "shared") return BufferKind::kShared;
  if (text == "private") return BufferKind::kPrivate;
  if (text == "vram") return BufferKind::kVram;
  throw Failure{fmt::format("'{}' is not a kind of memory: shared, private or vram", text)};
}

void Unmap::operator()(std::byte* address) const { munmap(address, bytes); }

Buffer::Buffer(BufferKind kind, uint64_t bytes, int gpu) : size_(bytes) {
  if (kind == BufferKind::kVram) gpu_ = std::make_unique<GpuMemory>(gpu, bytes);
  if (kind == BufferKind::kShared) {
    shared_.emplace(bytes);
    data_ = shared_->data();
  } else {
    // Shared memory is refused if there is too little. Private memory the kernel would overcommit.
    if (const uint64_t free = towline_memory_available(); bytes > free) {
      throw Failure{fmt::format("no {} of memory: {} are available", format_size(static_cast<double>(bytes)),
                                format_size(static_cast<double>(free)))};
    }
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      throw Failure{
          fmt::format("no {} of memory: {}", format_size(static_cast<double>(bytes)), std::strerror(errno))};
    }
    private_ = {static_cast<std::byte*>(address), Unmap{bytes}};
    data_ = private_.get();
  }
  constexpr uint64_t kPage = 4096;
  for (uint64_t offset = 0; offset < size_; offset += kPage) {
    *reinterpret_cast<volatile std::byte*>(data_ + offset) = std::byte{0};
  }
}

towline::MemoryView Buffer::view() const {
  if (gpu_ == nullptr) return towline::dram(bytes());
  return {.address = reinterpret_cast<void*>(gpu_->address()),
          .bytes = size_,
          .kind = towline::Kind::kVram,
          .device = gpu_->device()};
}

uint64_t Buffer::address() const {
  return gpu_ != nullptr ? gpu_->address() : reinterpret_cast<uint64_t>(data_);
}

void Buffer::push(uint64_t offset, uint64_t bytes) {
  if (gpu_ != nullptr) gpu_->put(offset, data_ + offset, bytes);
}

void Buffer::pull(uint64_t offset, uint64_t bytes) {
  if (gpu_ != nullptr) gpu_->get(offset, data_ + offset, bytes);
}

Place place_of(const towline::Peer& peer, uint64_t address) {
  for (const auto& region : peer.regions()) {
    if (address < region.address || address - region.address >= region.bytes) continue;
    return {static_cast<towline::Kind>(region.kind), region.device};
  }
  return {};
}

}  // namespace tool

#include "fabric/buffer_pool.h"

#include "base/error.h"
#include "base/os/prefer_node.h"

namespace towline::fabric {

BufferPool::BufferPool(TransferEngine& engine, const BufferPoolOptions& options) : engine_(engine) {
  constexpr uint64_t kLine = 64;
  if (options.buffer_bytes == 0 || options.buffers == 0 ||
      options.buffer_bytes > (UINT64_MAX >> 1) / options.buffers)
    fail(Status::kInvalidArgument, "a pool of {} buffers of {} bytes", options.buffers, options.buffer_bytes);
  stride_ = (options.buffer_bytes + kLine - 1) / kLine * kLine;
  arena_ = Mapping::map_private(stride_ * options.buffers);
  prefer_node_for(arena_.address(), arena_.bytes(), engine.node());
  taken_.resize(options.buffers);
  for (uint32_t i = options.buffers; i-- > 0;) free_.push_back(i);
  // Last: nothing that fails may leave memory registered that goes.
  memory_ = engine_.register_memory(
      {arena_.address(), stride_ * options.buffers, options.remote_read, options.remote_write});
}

BufferPool::~BufferPool() {
  try {
    engine_.deregister_memory(memory_);
  } catch (const Error&) {
    engine_.keep(std::move(arena_));
  }
}

BufferPool::Buffer BufferPool::take() noexcept {
  const std::lock_guard held{mutex_};
  if (free_.empty()) return {};
  const uint32_t index = free_.back();
  free_.pop_back();
  taken_[index] = true;
  return {index, arena_.address() + index * stride_, index * stride_};
}

void BufferPool::give_back(uint32_t index) {
  const std::lock_guard held{mutex_};
  if (index >= taken_.size() || !taken_[index])
    fail(Status::kInvalidArgument, "buffer {} of {} was not taken", index, taken_.size());
  taken_[index] = false;
  free_.push_back(index);
}

uint32_t BufferPool::available() const noexcept {
  const std::lock_guard held{mutex_};
  return static_cast<uint32_t>(free_.size());
}

}  // namespace towline::fabric

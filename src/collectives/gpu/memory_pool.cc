#include "collectives/gpu/memory_pool.h"

#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"

namespace towline::collectives::gpu {
namespace {

struct Pool {
  struct Entry {
    std::shared_ptr<cuda::SharedPiece> piece;
    cuda::KernelDevice* device = nullptr;
    uint32_t gpu = 0;
  };
  std::mutex mutex;
  std::map<uint64_t, Entry> pieces;  // by their first address
};
// Never destroyed: the driver may go before it.
Pool& pool() {
  static Pool& of_process = *new Pool;
  return of_process;
}

}  // namespace

void* pool_allocate(cuda::KernelDevice& device, uint32_t gpu, uint64_t bytes) noexcept {
  try {
    device.start();
    if (gpu >= device.gpus().size())
      fail(Status::kInvalidArgument, "there is no GPU {}: this process sees {}", gpu, device.gpus().size());
    std::shared_ptr<cuda::SharedPiece> piece = device.allocate(gpu, bytes);
    const uint64_t address = piece->address();
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    all.pieces[address] = {std::move(piece), &device, gpu};
    return reinterpret_cast<void*>(address);
  } catch (const std::exception& error) {
    TOWLINE_LOG(kError, "gpu: no shared memory of {} bytes on GPU {}: {}", bytes, gpu, error.what());
    return nullptr;
  }
}

void pool_free(void* address) noexcept {
  Pool::Entry gone;  // unmapped without the lock
  {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    const auto found = all.pieces.find(reinterpret_cast<uint64_t>(address));
    if (found == all.pieces.end()) return;
    gone = std::move(found->second);
    all.pieces.erase(found);
  }
  // Unmapping waits for no kernel, as programs expect of what frees memory. Where a window maps it, that one is closed later.
  if (gone.piece.use_count() == 1) gone.device->settle(gone.gpu);
}

PoolPart pool_find(uint64_t address, uint64_t bytes) {
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  auto found = all.pieces.upper_bound(address);
  if (found == all.pieces.begin()) return {};
  --found;
  const cuda::SharedPiece& piece = *found->second.piece;
  const uint64_t offset = address - piece.address();
  if (offset > piece.bytes() || bytes > piece.bytes() - offset) return {};
  return {found->second.piece, offset};
}

}  // namespace towline::collectives::gpu

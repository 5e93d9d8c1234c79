// Source-compatible with NIXL's header of this name: what code on a GPU does with views of memory (nixlAgent::prepMemView)
// of Towline's own backends.
//
// The GPU moves the bytes itself, by loads and stores over NVLink, PCIe or within its memory, so every call has
// ended when it returns. Threads that make a call together (`level`) all make it, with the same arguments; blocks
// have one dimension. The same source compiles as C++ for tests without a GPU: there a block has one thread.
#ifndef TOWLINE_NIXL_DEVICE_CUH
#define TOWLINE_NIXL_DEVICE_CUH

#include <nixl_types.h>
#include <towline_nixl_view.h>
#include <towline/device/symmetric.cuh>

// Of one call; nixlGpuGetXferStatus reads it.
struct nixlGpuXferStatusH {
  nixl_status_t status;
};

enum class nixl_gpu_level_t : uint64_t { THREAD = 0, WARP = 1, BLOCK = 2, GRID = 3 };

namespace nixl_gpu_flags {
// nixlPut: do not wait here until the bytes are there. They are before a later nixlAtomicAdd of the same threads is.
inline constexpr uint64_t defer = 1;
}  // namespace nixl_gpu_flags

struct nixlMemViewElem {
  nixlMemViewH mvh;
  size_t index;   // of the entry in the view
  size_t offset;  // of the first byte in the entry
};

namespace towline::nixl {

// The threads that make a call together.
template <nixl_gpu_level_t level>
struct ViewThreads {
#if defined(__CUDA_ARCH__)
  static TOWLINE_DEVICE uint32_t lane() { return threadIdx.x % 32; }
  static TOWLINE_DEVICE uint32_t lanes() {
    const uint32_t left = blockDim.x - (threadIdx.x - lane());
    return left < 32 ? left : 32;
  }
  static TOWLINE_DEVICE uint64_t index() {
    if constexpr (level == nixl_gpu_level_t::WARP) return lane();
    if constexpr (level == nixl_gpu_level_t::BLOCK) return threadIdx.x;
    if constexpr (level == nixl_gpu_level_t::GRID) return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    return 0;
  }
  static TOWLINE_DEVICE uint64_t count() {
    if constexpr (level == nixl_gpu_level_t::WARP) return lanes();
    if constexpr (level == nixl_gpu_level_t::BLOCK) return blockDim.x;
    if constexpr (level == nixl_gpu_level_t::GRID) return uint64_t{gridDim.x} * blockDim.x;
    return 1;
  }
  // A grid synchronises each of its blocks by itself.
  static TOWLINE_DEVICE void sync() {
    if constexpr (level == nixl_gpu_level_t::WARP) __syncwarp(lanes() == 32 ? ~0u : (1u << lanes()) - 1);
    if constexpr (level == nixl_gpu_level_t::BLOCK || level == nixl_gpu_level_t::GRID) __syncthreads();
  }
#else
  static TOWLINE_DEVICE uint64_t index() { return 0; }
  static TOWLINE_DEVICE uint64_t count() { return 1; }
  static TOWLINE_DEVICE void sync() {}
#endif
};

// The GPU's address of those bytes; 0: the view has none.
TOWLINE_DEVICE uint64_t view_address(nixlMemViewH view, size_t index, size_t offset, size_t bytes) {
  const auto* const table = static_cast<const ViewTable*>(view);
  if (table == nullptr || table->magic != kViewMagic || index >= table->count) return 0;
  const ViewEntry entry = reinterpret_cast<const ViewEntry*>(table + 1)[index];
  if (entry.address == 0 || offset > entry.bytes || bytes > entry.bytes - offset) return 0;
  return entry.address + offset;
}

TOWLINE_DEVICE nixl_status_t view_ended(nixl_status_t status, nixlGpuXferStatusH* xfer_status) {
  if (xfer_status != nullptr) xfer_status->status = status == NIXL_IN_PROG ? NIXL_SUCCESS : status;
  return status;
}

}  // namespace towline::nixl

// NIXL_SUCCESS, or what the call has returned.
template <nixl_gpu_level_t level = nixl_gpu_level_t::THREAD>
TOWLINE_DEVICE nixl_status_t nixlGpuGetXferStatus(nixlGpuXferStatusH& xfer_status) {
  return xfer_status.status;
}

// Copies `size` bytes from an entry of a local view to one of a remote view. NIXL_IN_PROG: done, as after every other
// success of NIXL's. NIXL_ERR_INVALID_PARAM: not within these entries, or one that has no agent. Every channel
// is the same.
template <nixl_gpu_level_t level = nixl_gpu_level_t::THREAD>
TOWLINE_DEVICE nixl_status_t nixlPut(const nixlMemViewElem& src, const nixlMemViewElem& dst, size_t size,
                                     unsigned /*channel_id*/ = 0, uint64_t flags = 0,
                                     nixlGpuXferStatusH* xfer_status = nullptr) {
  using Threads = towline::nixl::ViewThreads<level>;
  const uint64_t from = towline::nixl::view_address(src.mvh, src.index, src.offset, size);
  const uint64_t to = towline::nixl::view_address(dst.mvh, dst.index, dst.offset, size);
  if (from == 0 || to == 0) return towline::nixl::view_ended(NIXL_ERR_INVALID_PARAM, xfer_status);
  towline::device::copy_share(to, from, size, Threads::index(), Threads::count());
  if ((flags & nixl_gpu_flags::defer) == 0) towline::device::fence();
  Threads::sync();
  return towline::nixl::view_ended(NIXL_IN_PROG, xfer_status);
}

// Adds to a counter of 8 bytes, once for all threads of the level. Its owner sees the sum no sooner than what these
// threads put before. Not for the level GRID, whose threads can't wait for one another: NIXL_ERR_NOT_SUPPORTED.
template <nixl_gpu_level_t level = nixl_gpu_level_t::THREAD>
TOWLINE_DEVICE nixl_status_t nixlAtomicAdd(uint64_t value, const nixlMemViewElem& counter,
                                           unsigned /*channel_id*/ = 0, uint64_t /*flags*/ = 0,
                                           nixlGpuXferStatusH* xfer_status = nullptr) {
  using Threads = towline::nixl::ViewThreads<level>;
  if constexpr (level == nixl_gpu_level_t::GRID)
    return towline::nixl::view_ended(NIXL_ERR_NOT_SUPPORTED, xfer_status);
  const uint64_t word = towline::nixl::view_address(counter.mvh, counter.index, counter.offset, sizeof value);
  if (word == 0 || word % sizeof value != 0)
    return towline::nixl::view_ended(NIXL_ERR_INVALID_PARAM, xfer_status);
  Threads::sync();
  if (Threads::index() == 0) towline::device::add_release(reinterpret_cast<uint64_t*>(word), value);
  return towline::nixl::view_ended(NIXL_IN_PROG, xfer_status);
}

// The GPU's address of an entry; null: it has none.
TOWLINE_DEVICE void* nixlGetPtr(nixlMemViewH mvh, size_t index) {
  return reinterpret_cast<void*>(towline::nixl::view_address(mvh, index, 0, 0));
}

#endif

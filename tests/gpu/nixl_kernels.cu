// An application's kernels over NIXL's views of memory.
#include "nixl_kernels.h"

namespace towline::gpu_test {

// Each unit of `level` in the grid puts its share of the bytes, and then adds one.
template <nixl_gpu_level_t level>
__device__ void put_share(const ViewTry& what, uint64_t unit, uint64_t units, bool counts) {
  const uint64_t share = what.bytes / units;
  nixlMemViewElem from = what.source;
  nixlMemViewElem to = what.target;
  from.offset += unit * share;
  to.offset += unit * share;
  nixlGpuXferStatusH status;
  bool good = nixlPut<level>(from, to, share, 0, nixl_gpu_flags::defer, &status) == NIXL_IN_PROG;
  good = good && nixlGpuGetXferStatus<level>(status) == NIXL_SUCCESS;
  if (counts) good = good && nixlAtomicAdd<level>(1, what.counter, 0, 0, &status) == NIXL_IN_PROG;
  if (!good) atomicAdd(reinterpret_cast<unsigned long long*>(what.outcome), 1ull);
}

}  // namespace towline::gpu_test

using towline::gpu_test::put_share;

extern "C" __global__ void towline_test_nixl_put(const __grid_constant__ towline::gpu_test::ViewTry what) {
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  switch (static_cast<nixl_gpu_level_t>(what.level)) {
    case nixl_gpu_level_t::THREAD:
      return put_share<nixl_gpu_level_t::THREAD>(what, thread, threads, true);
    case nixl_gpu_level_t::WARP:
      return put_share<nixl_gpu_level_t::WARP>(what, thread / 32, threads / 32, true);
    case nixl_gpu_level_t::BLOCK:
      return put_share<nixl_gpu_level_t::BLOCK>(what, blockIdx.x, gridDim.x, true);
    case nixl_gpu_level_t::GRID:  // every block counts its own part
      put_share<nixl_gpu_level_t::GRID>(what, 0, 1, false);
      if (nixlAtomicAdd<nixl_gpu_level_t::BLOCK>(1, what.counter) != NIXL_IN_PROG)
        atomicAdd(reinterpret_cast<unsigned long long*>(what.outcome), 1ull);
  }
}

// One block.
extern "C" __global__ void towline_test_nixl_wait(const __grid_constant__ towline::gpu_test::ViewWait what) {
  __shared__ bool came;
  if (threadIdx.x == 0) {
    const auto* const word = reinterpret_cast<const uint64_t*>(what.counter);
    const uint64_t began = towline::device::now_ns();
    came = true;
    while (towline::device::load_acquire(word) < what.count && came)
      came = towline::device::now_ns() - began < what.limit_ns;
  }
  __syncthreads();
  auto* const outcome = reinterpret_cast<unsigned long long*>(what.outcome);
  if (!came) {
    if (threadIdx.x == 0) *outcome = towline::gpu_test::kNeverCame;
    return;
  }
  const auto* const data = reinterpret_cast<const volatile uint8_t*>(what.data);
  const auto* const expected = reinterpret_cast<const uint8_t*>(what.expected);
  for (uint64_t i = threadIdx.x; i < what.bytes; i += blockDim.x)
    if (data[i] != expected[i]) atomicAdd(outcome, 1ull);
}

// Writes the addresses of the view's first entries.
extern "C" __global__ void towline_test_nixl_pointers(nixlMemViewH view, uint64_t count, uint64_t* out) {
  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x)
    out[i] = reinterpret_cast<uint64_t>(nixlGetPtr(view, i));
}

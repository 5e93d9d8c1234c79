// The copy kernel: moves a whole list of pieces in one launch, and reports to the host when the last byte has
// arrived.
//
// A group of `threads` threads takes a chunk, then the chunk a grid further on. Each thread has up to eight loads
// of 16 bytes under way before the first store; what the next chunk is gets looked up before this one is
// copied. The block that arrives last orders everything before its release of the flag, which lies in pinned
// memory.
#include "copy_job.h"

namespace towline::cuda {
namespace {

constexpr uint32_t kUnroll = 8;

__device__ __forceinline__ uint4 load16(uint64_t address) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

__device__ __forceinline__ void store16(uint64_t address, uint4 v) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void copy_units16(uint64_t to, uint64_t from, uint32_t units, uint32_t member,
                                             uint32_t threads) {
  for (uint32_t first = member; first < units; first += threads * kUnroll) {
    uint4 data[kUnroll];
#pragma unroll
    for (uint32_t k = 0; k < kUnroll; ++k) {
      const uint32_t unit = first + k * threads;
      if (unit < units) data[k] = load16(from + unit * 16ull);
    }
#pragma unroll
    for (uint32_t k = 0; k < kUnroll; ++k) {
      const uint32_t unit = first + k * threads;
      if (unit < units) store16(to + unit * 16ull, data[k]);
    }
  }
}

template <class Unit>
__device__ __forceinline__ void copy_units(uint64_t to, uint64_t from, uint32_t units, uint32_t member,
                                           uint32_t threads) {
  for (uint32_t first = member; first < units; first += threads * 4) {
    Unit data[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t unit = first + k * threads;
      if (unit < units) data[k] = reinterpret_cast<const volatile Unit*>(from)[unit];
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t unit = first + k * threads;
      if (unit < units) reinterpret_cast<volatile Unit*>(to)[unit] = data[k];
    }
  }
}

// Any addresses and any length.
__device__ __forceinline__ void copy_unaligned(uint64_t to, uint64_t from, uint32_t bytes, uint32_t member,
                                               uint32_t threads) {
  const uint64_t apart = to ^ from;
  if ((apart & 3) != 0) return copy_units<uint8_t>(to, from, bytes, member, threads);
  const uint32_t width = (apart & 15) == 0 ? 16 : (apart & 7) == 0 ? 8 : 4;
  uint32_t head = static_cast<uint32_t>(-to) & (width - 1);
  if (head > bytes) head = bytes;
  copy_units<uint8_t>(to, from, head, member, threads);
  const uint32_t units = (bytes - head) / width;
  const uint32_t body = units * width;
  if (width == 16)
    copy_units16(to + head, from + head, units, member, threads);
  else if (width == 8)
    copy_units<uint64_t>(to + head, from + head, units, member, threads);
  else
    copy_units<uint32_t>(to + head, from + head, units, member, threads);
  copy_units<uint8_t>(to + head + body, from + head + body, bytes - head - body, member, threads);
}

__device__ __forceinline__ void store_to_host(uint64_t address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

template <Form kForm, bool kAligned>
__device__ __forceinline__ void copy_chunks(const CopyJob& job, uint32_t thread, uint32_t member,
                                            uint64_t chunks) {
  const uint64_t groups = static_cast<uint64_t>(gridDim.x) * blockDim.x / job.threads;
  uint64_t index = thread / job.threads;
  Chunk next = {0, 0, 0};
  if (index < chunks) next = find_chunk<kForm>(job, index);
  while (index < chunks) {
    const Chunk chunk = next;
    index += groups;
    if (index < chunks) next = find_chunk<kForm>(job, index);
    const auto bytes = static_cast<uint32_t>(chunk.bytes);
    if constexpr (kAligned)
      copy_units16(chunk.to, chunk.from, bytes / 16, member, job.threads);
    else
      copy_unaligned(chunk.to, chunk.from, bytes, member, job.threads);
  }
}

template <Form kForm, bool kAligned>
__device__ __forceinline__ void run(const CopyJob& job, const Completion& done) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  auto* const valve = reinterpret_cast<ValveWords*>(done.valve);
  const bool open = valve == nullptr || *const_cast<volatile uint32_t*>(&valve->open) != 0;
  copy_chunks<kForm, kAligned>(job, thread, thread & (job.threads - 1), open ? chunks_of(job) : 0);
  __syncthreads();
  if (threadIdx.x != 0) return;
  // If one block did it all, the release of the flag orders what its threads stored before the barrier.
  if (gridDim.x != 1) {
    __threadfence_system();
    auto* const arrivals = reinterpret_cast<uint32_t*>(done.arrivals);
    if (atomicAdd(arrivals, 1u) != gridDim.x - 1) return;
    *arrivals = 0;
    __threadfence_system();
  }
  if (valve == nullptr) return store_to_host(done.flag, done.value);
  auto* const report = reinterpret_cast<ValveReport*>(done.report);
  if (!open) *const_cast<volatile uint64_t*>(&report->refused) = ++valve->refused;
  store_to_host(reinterpret_cast<uint64_t>(&report->ended), valve->runs);
}

}  // namespace
}  // namespace towline::cuda

extern "C" __global__ void towline_valve(towline::cuda::ValveWords* words,
                                         towline::cuda::ValveReport* report) {
  const uint64_t run = words->runs + 1;
  words->runs = run;
  *const_cast<volatile uint64_t*>(&report->begun) = run;
  __threadfence_system();
  words->open = *const_cast<volatile uint64_t*>(&report->closed) == 0 ? 1 : 0;
}

#define TOWLINE_COPY_KERNEL(name, form, aligned)                           \
  extern "C" __global__ void __launch_bounds__(towline::cuda::kThreads, 1) \
      name(const __grid_constant__ towline::cuda::CopyJob job,             \
           const __grid_constant__ towline::cuda::Completion done) {       \
    towline::cuda::run<towline::cuda::Form::form, aligned>(job, done);     \
  }

TOWLINE_COPY_KERNEL(towline_copy_strided, kStrided, false)
TOWLINE_COPY_KERNEL(towline_copy_strided_aligned, kStrided, true)
TOWLINE_COPY_KERNEL(towline_copy_pairs, kPairs, false)
TOWLINE_COPY_KERNEL(towline_copy_pairs_aligned, kPairs, true)
TOWLINE_COPY_KERNEL(towline_copy_pieces, kPieces, false)
TOWLINE_COPY_KERNEL(towline_copy_pieces_aligned, kPieces, true)

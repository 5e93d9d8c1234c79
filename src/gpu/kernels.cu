// The copy kernel: moves a whole list of pieces in one launch, and reports to the host when the last byte has
// arrived.
//
// A group of `threads` threads takes a chunk, then the chunk a grid further on. Each thread has up to eight loads
// of 16 bytes under way before the first store, also where source and target lie differently in their 16 bytes
// (shifted_copy.h); what the next chunk is gets looked up before this one is copied. The block that arrives last orders everything
// before its release of the flag, which lies in pinned memory.
//
// On H200 a multiprocessor sends 42 GB/s over NVLink and takes in 50. Bulk copies through shared memory (cp.async.bulk,
// rings of 4 to 32 KiB, one to 16 a block) reach the same 42 and 50, so only more multiprocessors make a copy faster.
#include "copy_job.h"
#include "shifted_copy.h"

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

__device__ __forceinline__ Unit16 load_unit(uint64_t address) {  // kept in L1: a neighbour needs it, too
  Unit16 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(address));
  return v;
}

// `from` lies `skip` bytes, 1 to 15, behind a multiple of 16; kWords whole words of these.
template <uint32_t kWords>
__device__ __forceinline__ void copy_shifted(uint64_t to, uint64_t from, uint32_t units, uint32_t skip,
                                             uint32_t member, uint32_t threads) {
  constexpr uint32_t kAtOnce = 2;
  const uint64_t base = from - skip;
  const uint32_t bits = (skip & 3) * 8;
  for (uint32_t first = member; first < units; first += threads * kAtOnce) {
    Unit16 low[kAtOnce];
    Unit16 high[kAtOnce];
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t unit = first + k * threads;
      if (unit >= units) continue;
      low[k] = load_unit(base + unit * 16ull);
      high[k] = load_unit(base + unit * 16ull + 16);
    }
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t unit = first + k * threads;
      if (unit >= units) continue;
      const Unit16 made = shift_unit<kWords>(low[k], high[k], bits);
      store16(to + unit * 16ull, make_uint4(made.words[0], made.words[1], made.words[2], made.words[3]));
    }
  }
}

// Any addresses and any length. The first bytes of the edges are loaded before the units between them.
__device__ __forceinline__ void copy_unaligned(uint64_t to, uint64_t from, uint32_t bytes, uint32_t member,
                                               uint32_t threads) {
  const Edges edges = edges_of(to, bytes);
  const uint32_t outer = edges.head + edges.tail;
  uint8_t edge = 0;
  if (member < outer) edge = *reinterpret_cast<const volatile uint8_t*>(from + edge_at(edges, member));
  const uint64_t inner_to = to + edges.head;
  const uint64_t inner_from = from + edges.head;
  const auto skip = static_cast<uint32_t>(inner_from & 15);
  if (skip == 0)
    copy_units16(inner_to, inner_from, edges.units, member, threads);
  else if (skip < 4)
    copy_shifted<0>(inner_to, inner_from, edges.units, skip, member, threads);
  else if (skip < 8)
    copy_shifted<1>(inner_to, inner_from, edges.units, skip, member, threads);
  else if (skip < 12)
    copy_shifted<2>(inner_to, inner_from, edges.units, skip, member, threads);
  else
    copy_shifted<3>(inner_to, inner_from, edges.units, skip, member, threads);
  for (uint32_t number = member; number < outer; number += threads) {
    const uint32_t at = edge_at(edges, number);
    if (number != member) edge = *reinterpret_cast<const volatile uint8_t*>(from + at);
    *reinterpret_cast<volatile uint8_t*>(to + at) = edge;
  }
}

__device__ __forceinline__ void store_to_host(uint64_t address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

template <Form kForm, bool kAligned>
__device__ __forceinline__ void copy_chunks(const CopyJob& job, uint64_t chunks) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t member = thread & (job.threads - 1);
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

// A warp for each piece. A block reads the pieces of all its warps together, a turn ahead: a list may lie in host
// memory, where many small reads are what takes the time.
template <bool kAligned>
__device__ __forceinline__ void copy_pieces(const CopyJob& job) {
  constexpr uint32_t kUnits = sizeof(Piece) / 16;  // of a piece
  static_assert(kUnits * 16 == sizeof(Piece));
  __shared__ uint4 pieces[kThreads / 32 * kUnits];
  const uint32_t warps = blockDim.x / 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint64_t turn = static_cast<uint64_t>(gridDim.x) * warps;
  const uint64_t list = job.list + job.first_piece * sizeof(Piece);
  const auto read = [&](uint64_t first) {
    const uint64_t unit = first * kUnits + threadIdx.x;
    if (threadIdx.x >= warps * kUnits || unit >= job.pieces * kUnits) return make_uint4(0, 0, 0, 0);
    return load16(list + unit * 16);
  };
  uint64_t first = static_cast<uint64_t>(blockIdx.x) * warps;
  uint4 next = read(first);
  for (; first < job.pieces; first += turn) {
    __syncthreads();  // all have taken what was there
    if (threadIdx.x < warps * kUnits) pieces[threadIdx.x] = next;
    __syncthreads();
    next = read(first + turn);
    if (first + warp >= job.pieces) continue;
    const Chunk chunk = chunk_of(job, reinterpret_cast<const Piece*>(pieces)[warp]);
    const auto bytes = static_cast<uint32_t>(chunk.bytes);
    if constexpr (kAligned)
      copy_units16(chunk.to, chunk.from, bytes / 16, threadIdx.x % 32, 32);
    else
      copy_unaligned(chunk.to, chunk.from, bytes, threadIdx.x % 32, 32);
  }
}

template <Form kForm, bool kAligned>
__device__ __forceinline__ void run(const CopyJob& job, const Completion& done) {
  auto* const valve = reinterpret_cast<ValveWords*>(done.valve);
  const bool open = valve == nullptr || *const_cast<volatile uint32_t*>(&valve->open) != 0;
  if constexpr (kForm == Form::kPieces) {
    if (open) copy_pieces<kAligned>(job);
  } else {
    copy_chunks<kForm, kAligned>(job, open ? chunks_of(job) : 0);
  }
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

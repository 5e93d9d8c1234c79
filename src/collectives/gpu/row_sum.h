// The sum of a row's squares, the same on all threads that have some of the row: those of a block, of a cluster of blocks, or of
// blocks that tell one another through memory.
//
// A cluster is the fastest way, but its blocks begin together on neighbouring multiprocessors, and there must be room for it whatever else
// runs (clusters.h). Through memory it takes 0.25 us more, and any blocks do. (H200.)
#pragma once

#include "collectives/gpu/shares.h"

namespace towline::collectives::gpu {

#if defined(__CUDA_ARCH__)
TOWLINE_DEVICE float sum_of_warp(float mine) {
  TOWLINE_UNROLL
  for (uint32_t apart = 16; apart != 0; apart /= 2) mine += __shfl_xor_sync(~0u, mine, apart);
  return mine;
}
#endif

// `failed`: that of any thread. By all threads of a block, which have met since they called it last. meanwhile() is called while slower
// warps are on their way.
template <class Meanwhile>
TOWLINE_DEVICE float sum_of_block(float mine, bool& failed, float* partial, Meanwhile&& meanwhile) {
#if defined(__CUDA_ARCH__)
  mine = sum_of_warp(mine);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  meanwhile();
  failed = device::sync_any(failed);
  const uint32_t lane = threadIdx.x % 32;
  return sum_of_warp(lane < blockDim.x / 32 ? partial[lane] : 0.0f);
#else
  (void)failed;
  (void)partial;
  meanwhile();
  return mine;
#endif
}
TOWLINE_DEVICE float sum_of_block(float mine, bool& failed, float* partial) {
  return sum_of_block(mine, failed, partial, [] {});
}

// ---- Of several blocks

// The blocks of a row, whose warps each give all blocks their sum: so nobody waits for the slowest warp before it says something.
struct RowBlocks {
  uint32_t first;  // the row's first block
  uint32_t part;   // which of them this is
};
TOWLINE_DEVICE RowBlocks row_blocks(const Job& job, uint32_t block) {
  const uint32_t part = block % job.parts;
  return {block - part, part};
}
TOWLINE_DEVICE uint32_t warps() {
#if defined(__CUDA_ARCH__)
  return blockDim.x / 32;
#else
  return 1;
#endif
}
inline constexpr uint64_t kSumFailed = uint64_t{1} << 32;
inline constexpr uint64_t kSumCame = uint64_t{1} << 33;

// A cluster's store them in one another's shared memory. What arrives there counts itself, so that no block waits for its other stores, as
// it would at the cluster's barrier.
//
// A model's tell one another through memory.
TOWLINE_DEVICE bool in_cluster([[maybe_unused]] const Job& job) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return job.clustered != 0;
#else
  return false;
#endif
}

// First each block gets ready for that. All threads, which call await_cluster once they have something else to wait for.
TOWLINE_DEVICE void begin_cluster([[maybe_unused]] const Job& job, [[maybe_unused]] Scratch& scratch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (!in_cluster(job)) return;
  if (threadIdx.x == 0) {
    const auto counter = static_cast<uint32_t>(__cvta_generic_to_shared(&scratch.arrivals));
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n\t"
        "fence.mbarrier_init.release.cluster;" ::"r"(counter),
        "r"(job.parts * (blockDim.x / 32) * 8)
        : "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
TOWLINE_DEVICE void await_cluster([[maybe_unused]] const Job& job) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (in_cluster(job)) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
TOWLINE_DEVICE void give_in_cluster(const Job& job, uint32_t part, uint64_t said, Scratch& scratch) {
  const uint32_t lane = threadIdx.x % 32;
  if (lane >= job.parts) return;  // each to one block
  const auto place =
      static_cast<uint32_t>(__cvta_generic_to_shared(&scratch.sums[part * warps() + threadIdx.x / 32]));
  const auto counter = static_cast<uint32_t>(__cvta_generic_to_shared(&scratch.arrivals));
  asm volatile(
      "{\n\t.reg .b32 place, counter;\n\t"
      "mapa.shared::cluster.u32 place, %0, %2;\n\t"
      "mapa.shared::cluster.u32 counter, %1, %2;\n\t"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [place], %3, [counter];\n\t}" ::"r"(place),
      "r"(counter), "r"(lane), "l"(said)
      : "memory");
}
// The wait's order is the block's: one for all of the cluster would empty the cache, and nothing else came from other blocks.
TOWLINE_DEVICE float take_in_cluster(const Job& job, bool& failed, Scratch& scratch) {
  const auto counter = static_cast<uint32_t>(__cvta_generic_to_shared(&scratch.arrivals));
  uint32_t came = 0;
  while (came == 0)
    asm volatile(
        "{\n\t.reg .pred came;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 came, [%1], 0;\n\t"
        "selp.u32 %0, 1, 0, came;\n\t}"
        : "=r"(came)
        : "r"(counter)
        : "memory");
  float sum = 0;
  bool fails = false;
  const uint32_t all = job.parts * warps();
  TOWLINE_UNROLL
  for (uint32_t k = 0; k < kRowSums / 32; ++k) {
    const uint32_t from = threadIdx.x % 32 + 32 * k;
    if (from >= all) break;
    const uint64_t one = scratch.sums[from];
    sum += __uint_as_float(static_cast<uint32_t>(one));
    fails = fails || (one & kSumFailed) != 0;
  }
  failed = __any_sync(~0u, fails) != 0;
  return sum_of_warp(sum);
}
#endif

// Through memory each is one word that tells that it has come. Its reader empties it at the end of its turn: the next kernel of this rank
// stores nothing before this one has ended.
TOWLINE_DEVICE void give_in_memory(const Job& job, const RowBlocks& row, uint64_t said) {
  Control& me = control_of(job, job.rank);
#if defined(__CUDA_ARCH__)
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  if (lane < job.parts)
    device::store_relaxed(&me.row_sums[row.first + lane][row.part * warps() + warp], said | kSumCame);
#else
  for (uint32_t other = 0; other < job.parts; ++other)
    device::store_relaxed(&me.row_sums[row.first + other][row.part], said | kSumCame);
#endif
}
// The blocks of a row are all there when this waits for them, since the kernel had to have room for all its blocks: so this ends as they
// do, with what they got from other ranks. Where there was no room after all it ends as other waits do, and this block makes some; then the
// communicator is broken, and what its words are does not matter any more. Each warp for itself, so that none waits for another one.
TOWLINE_DEVICE float take_in_memory(const Job& job, uint32_t block, bool& failed, Stopped& stopped) {
  const uint64_t* const sums = control_of(job, job.rank).row_sums[block];
#if defined(__CUDA_ARCH__)
  const uint32_t all = job.parts * warps();
  const uint32_t lane = threadIdx.x % 32;
  uint64_t one[kRowSums / 32];
  Waiter waiter;
  bool gone = false;
  bool came = false;
  while (__all_sync(~0u, came) == 0) {
    came = true;
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kRowSums / 32; ++k) {
      one[k] = kSumCame;
      if (lane + 32 * k < all) one[k] = device::load_relaxed(&sums[lane + 32 * k]);
    }
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kRowSums / 32; ++k) came = came && (one[k] & kSumCame) != 0;
    if (!came && !gone) gone = stops(job, waiter, job.rank, nullptr, 0, stopped);
    came = came || gone;
  }
  float sum = 0;
  bool fails = gone;
  TOWLINE_UNROLL
  for (uint32_t k = 0; k < kRowSums / 32; ++k) {
    sum += __uint_as_float(static_cast<uint32_t>(one[k]));
    fails = fails || (one[k] & kSumFailed) != 0;
  }
  failed = __any_sync(~0u, fails) != 0;
  return sum_of_warp(sum);
#else
  Waiter waiter;
  float sum = 0;
  for (uint32_t other = 0; other < job.parts; ++other) {
    uint64_t one;
    while (((one = device::load_relaxed(&sums[other])) & kSumCame) == 0)
      if (stops(job, waiter, job.rank, nullptr, 0, stopped)) {
        failed = true;
        return sum;
      }
    failed = failed || (one & kSumFailed) != 0;
    const auto low = static_cast<uint32_t>(one);
    float value;
    memcpy(&value, &low, sizeof value);
    sum += value;
  }
  return sum;
#endif
}
TOWLINE_DEVICE void empty_row_sums(const Job& job, uint32_t block) {
  if (job.parts == 1 || in_cluster(job)) return;
  uint64_t* const sums = control_of(job, job.rank).row_sums[block];
  const uint32_t all = job.parts * warps();
  for (uint32_t at = device::thread(); at < all; at += device::threads()) device::store_relaxed(&sums[at], 0);
}

// By all threads of a row's blocks, which have what other ranks gave. The blocks wait for one another only, and are all there: so the next
// kernel may begin while the sums are on their way (0.3 us a kernel on H200). meanwhile() is called then, and stores what would keep the
// sums waiting otherwise. A row's only block calls it while it waits for its slower warps if it is kShort: where they have more to store, that
// keeps them (64 rows of two ranks take 5.5 us instead of 5.3).
template <bool kShort, class Meanwhile>
TOWLINE_DEVICE float sum_of_row(const Job& job, const Turn& turn, const RowBlocks& row, float mine,
                                bool& failed, Stopped& stopped, Scratch& scratch, Meanwhile&& meanwhile) {
  if (job.parts == 1) {
    const float sum = sum_of_block(mine, failed, scratch.partial, [&] {
      if constexpr (kShort) meanwhile();
    });
    let_next_begin();
    if constexpr (!kShort) meanwhile();
    return sum;
  }
#if defined(__CUDA_ARCH__)
  mine = sum_of_warp(mine);
  failed = __any_sync(~0u, failed) != 0;
#endif
  uint32_t bits;
  memcpy(&bits, &mine, sizeof bits);
  const uint64_t said = bits | (failed ? kSumFailed : 0);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (in_cluster(job))
    give_in_cluster(job, row.part, said, scratch);
  else
#endif
    give_in_memory(job, row, said);
  device::sync();
  let_next_begin();
  meanwhile();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (in_cluster(job)) return take_in_cluster(job, failed, scratch);
#endif
  return take_in_memory(job, turn.block, failed, stopped);
}

// A block's turn: run_row(turn).
template <class RunRow>
TOWLINE_DEVICE void run_norm_row(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks,
                                 RunRow&& run_row) {
  begin_cluster(job, scratch);
  Turn turn = begin_turn(job, block, blocks);
  run_row(turn);
  end_turn(job, turn);
  empty_row_sums(job, block);
}
// The same with run_row(odd, turn), where `odd` tells as a type whether some of this rank's data does not start at a multiple of 8.
template <class RunRow>
TOWLINE_DEVICE void run_any_norm_row(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks,
                                     RunRow&& run_row) {
  run_norm_row(job, scratch, block, blocks, [&](Turn& turn) {
    if (((job.in[0] | job.out[0] | job.residual | job.weight) & 7) != 0)
      run_row(std::true_type{}, turn);
    else
      run_row(std::false_type{}, turn);
  });
}

}  // namespace towline::collectives::gpu

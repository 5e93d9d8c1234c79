// all_reduce with RMSNorm of a few rows: every rank gives its input to all others with marked stores, and all normalise all
// rows, each in a block of its own or, where the GPU has clusters, in several blocks that add up what they have of the row.
//
// Decoding asks for this once a layer, on a few KiB, so what counts is how often a thread waits for memory, and how much goes through
// one multiprocessor: with 8 ranks 28 bytes for each byte of the row. All that does not depend on other ranks is loaded first, and
// a row stays in registers from there to its end. kRanks and kOdd are constants, since a kernel's code comes from memory as well.
#pragma once

#include "collectives/gpu/norm.h"

namespace towline::collectives::gpu {

// Units of 8 bytes that a thread has of its row, and those of the longest row.
inline constexpr uint32_t kUnitsOfThread = 4;
inline constexpr uint64_t kMarkedRowUnits = kUnitsOfThread * kThreads;

#if defined(__CUDA_ARCH__)
inline constexpr uint32_t kRowUnits = kUnitsOfThread;
#else
inline constexpr uint32_t kRowUnits = kMarkedRowUnits;  // the model's block has one thread
#endif

// Once all threads of the block have what other ranks gave. The blocks of a cluster wait for one another only, and are all there: so the
// next kernel may begin while the sums are on their way (0.3 us a kernel on H200).
TOWLINE_DEVICE void let_next_begin_once_taken() {
  device::sync();
  let_next_begin();
}

// A row's blocks are a cluster, whose warps store their sums in one another's shared memory. What arrives there counts itself, so
// that no block waits for its other stores, as it would at the cluster's barrier.
//
// First each block gets ready for that. All threads; what the others said is awaited with their sums.
TOWLINE_DEVICE void begin_cluster([[maybe_unused]] uint32_t parts, [[maybe_unused]] Scratch& scratch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (parts == 1) return;
  if (threadIdx.x == 0) {
    const auto counter = static_cast<uint32_t>(__cvta_generic_to_shared(&scratch.arrivals));
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n\t"
        "fence.mbarrier_init.release.cluster;" ::"r"(counter),
        "r"(parts * (blockDim.x / 32) * 8)
        : "memory");
  }
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

// As sum_of_block, of all threads of the blocks of a row, of which this is number `part`.
TOWLINE_DEVICE float sum_of_cluster(float mine, bool& failed, [[maybe_unused]] uint32_t part,
                                    [[maybe_unused]] uint32_t parts, Scratch& scratch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (parts == 1) return sum_of_block(mine, failed, scratch.partial);
  TOWLINE_UNROLL
  for (uint32_t apart = 16; apart != 0; apart /= 2) mine += __shfl_xor_sync(~0u, mine, apart);
  const uint64_t failing = __any_sync(~0u, failed) != 0 ? 1 : 0;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warps = blockDim.x / 32;
  const auto counter = static_cast<uint32_t>(__cvta_generic_to_shared(&scratch.arrivals));
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  if (lane < parts) {  // each to one block
    const auto place =
        static_cast<uint32_t>(__cvta_generic_to_shared(&scratch.partials[part * warps + threadIdx.x / 32]));
    asm volatile(
        "{\n\t.reg .b32 place, counter;\n\t"
        "mapa.shared::cluster.u32 place, %0, %2;\n\t"
        "mapa.shared::cluster.u32 counter, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [place], %3, [counter];\n\t}" ::"r"(place),
        "r"(counter), "r"(lane), "l"(failing << 32 | __float_as_uint(mine))
        : "memory");
  }
  uint32_t came = 0;
  while (came == 0)
    asm volatile(
        "{\n\t.reg .pred came;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 came, [%1], 0;\n\t"
        "selp.u32 %0, 1, 0, came;\n\t}"
        : "=r"(came)
        : "r"(counter)
        : "memory");
  float sum = 0;
  bool fails = false;
  for (uint32_t from = lane; from < parts * warps; from += 32) {
    const uint64_t one = scratch.partials[from];
    sum += __uint_as_float(static_cast<uint32_t>(one));
    fails = fails || one >> 32 != 0;
  }
  TOWLINE_UNROLL
  for (uint32_t apart = 16; apart != 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  failed = __any_sync(~0u, fails) != 0;
  return sum;
#else
  return sum_of_block(mine, failed, scratch.partial);
#endif
}

// What a thread has of its row.
struct RowPart {
  uint64_t input[kRowUnits];
  uint64_t residual[kRowUnits];
  uint64_t weight[kRowUnits];
  uint32_t marked[kRowUnits];
};

// kRanks: of at most so many. kOdd: some of this rank's data does not start at a multiple of 8.
template <class E, uint32_t kRanks, bool kOdd>
struct MarkedRow {
  using Bits = typename E::Bits;
  static constexpr uint32_t kLanes = 8 / sizeof(Bits);
  static constexpr uint32_t kOthers = kRanks - 1;
  // Units whose slots a thread asks for together: with many ranks one unit has enough of them.
  static constexpr uint32_t kTogether = kRanks <= 2 ? 4 : kRanks <= 4 ? 2 : 1;

  const Job& job;
  const Turn& turn;
  const uint64_t units;        // of this block's part of the row
  const uint64_t begin;        // of that part, in bytes
  const uint64_t weight;       // the part's
  const uint32_t first_block;  // its slots are those of this block, and of the ones behind it

  TOWLINE_DEVICE static uint64_t unit_of(uint32_t k) { return device::thread() + k * device::threads(); }
  TOWLINE_DEVICE static uint64_t load(uint64_t address) {
    if constexpr (kOdd)
      return load_any<uint64_t>(address);
    else
      return device::load_unit<uint64_t>(address);
  }
  TOWLINE_DEVICE static void store(uint64_t address, uint64_t value) {
    if constexpr (kOdd)
      store_any<uint64_t>(address, value);
    else
      device::store_unit<uint64_t>(address, value);
  }
  // The others are numbered in the order of their ranks.
  TOWLINE_DEVICE uint32_t other(uint32_t index) const { return index < job.rank ? index : index + 1; }
  TOWLINE_DEVICE bool is_there(uint32_t index) const { return index + 1 < job.size; }
  TOWLINE_DEVICE uint64_t slot(uint32_t at, uint32_t from, uint32_t marked, uint64_t unit) const {
    return marked_slot(job, at, from, marked, first_block + static_cast<uint32_t>(unit / kMarkedSlots),
                       static_cast<uint32_t>(unit % kMarkedSlots));
  }

  TOWLINE_DEVICE void give(RowPart& part) const {
    const Control& me = control_of(job, job.rank);
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kRowUnits; ++k) {
      const uint64_t unit = unit_of(k);
      if (unit >= units) break;
      part.input[k] = load(job.in[0] + begin + unit * 8);
      part.marked[k] = me.marked[first_block + unit / kMarkedSlots];
      if (job.residual != 0) part.residual[k] = load(job.residual + begin + unit * 8);
      if (job.weight != 0) part.weight[k] = load(weight + unit * 8);
    }
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kRowUnits; ++k) {
      const uint64_t unit = unit_of(k);
      if (unit >= units) break;
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < kOthers; ++i)
        if (is_there(i))
          store_marked(slot(other(i), job.rank, part.marked[k], unit), part.input[k], job.digest);
    }
  }

  // What the others gave of kTogether units from `first` on. The slots are emptied for their next use, which comes two operations later
  // and so after every rank has seen this one's end. False: failed.
  TOWLINE_DEVICE bool take(const RowPart& part, uint32_t first,
                           uint64_t (&values)[kTogether][kOthers]) const {
    Waiter waiter;
    const auto each = [&](auto&& does) {
      TOWLINE_UNROLL
      for (uint32_t k = 0; k < kTogether; ++k) {
        if (first + k >= kRowUnits || unit_of(first + k) >= units) break;
        TOWLINE_UNROLL
        for (uint32_t i = 0; i < kOthers; ++i)
          if (is_there(i))
            does(values[k][i], other(i),
                 slot(job.rank, other(i), part.marked[first + k], unit_of(first + k)));
      }
    };
    for (;;) {
      uint32_t missing = job.size;
      uint32_t wrong = job.size;
      each([&](uint64_t& value, uint32_t peer, uint64_t from) {
        uint32_t marks[2];
        load_marked(from, value, marks);
        if (marks[0] != job.digest || marks[1] != job.digest) missing = peer;
        if (other_digest(marks, job.digest) != 0) wrong = peer;
      });
      if (missing == job.size) break;
      if (wrong != job.size) {
        uint32_t other = 0;  // looked for again, since a thread that waits has no register to spare
        each([&](uint64_t, uint32_t peer, uint64_t from) {
          if (peer != wrong || other != 0) return;
          uint64_t value;
          uint32_t marks[2];
          load_marked(from, value, marks);
          other = other_digest(marks, job.digest);
        });
        disagree_with(job, wrong, other);
        return false;
      }
      if (give_up(job, waiter, missing, &control_of(job, job.rank).signal[missing][turn.block], turn.epoch))
        return false;
    }
    each([&](uint64_t, uint32_t, uint64_t from) { store_marked(from, 0, 0); });
    return true;
  }

  // The ranks' sum, in their order, and the residual. Adds to `squares`.
  TOWLINE_DEVICE uint64_t add(uint64_t mine, uint64_t residual, const uint64_t (&others)[kOthers],
                              float& squares) const {
    typename E::Sum sums[kLanes] = {};  // rank 0 sets them, which not every compiler sees
    Bits lanes[kLanes];
    TOWLINE_UNROLL
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank >= job.size) break;
      const uint64_t after = rank == 0 ? 0 : others[rank == 0 ? 0 : rank - 1];
      const uint64_t before = rank == kOthers ? 0 : others[rank == kOthers ? 0 : rank];
      const uint64_t value = rank == job.rank ? mine : rank < job.rank ? before : after;
      memcpy(lanes, &value, 8);
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i)
        sums[i] = rank == 0 ? E::widen(lanes[i]) : sums[i] + E::widen(lanes[i]);
    }
    Bits added[kLanes];
    memcpy(added, &residual, 8);
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) {
      lanes[i] = E::narrow(sums[i]);
      if (job.residual != 0) lanes[i] = with_residual<E>(lanes[i], added[i]);
      const float value = E::widen(lanes[i]);
      squares += value * value;
    }
    uint64_t sum;
    memcpy(&sum, lanes, 8);
    return sum;
  }

  TOWLINE_DEVICE void normalize(RowPart& part, float scale) const {
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kRowUnits; ++k) {
      const uint64_t unit = unit_of(k);
      if (unit >= units) break;
      Bits lanes[kLanes];
      Bits weights[kLanes];
      memcpy(lanes, &part.input[k], 8);
      memcpy(weights, &part.weight[k], 8);
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) lanes[i] = normalized<E>(job, lanes[i], scale, weights[i]);
      uint64_t result;
      memcpy(&result, lanes, 8);
      store(job.out[0] + begin + unit * 8, result);
    }
  }
};

// A thread stores to a unit only after it has read it, so outputs may be inputs.
template <class E, uint32_t kRanks, bool kOdd>
TOWLINE_DEVICE void run_marked_row(const Job& job, Turn& turn, Scratch& scratch) {
  using Row = MarkedRow<E, kRanks, kOdd>;
  const uint64_t row_bytes = row_bytes_of(job, sizeof(typename E::Bits));
  const uint64_t units = row_bytes / 8;
  const uint32_t at = turn.block % job.parts;
  const uint64_t each = units_of_part(units, job.parts);
  const auto of_part = static_cast<uint32_t>(marked_blocks_of(each));
  const uint64_t begin = at * each;
  const Row row{job,
                turn,
                rest(units, begin, each),
                turn.block / job.parts * row_bytes + begin * 8,
                job.weight + begin * 8,
                turn.block * of_part};
  RowPart part = {};
  row.give(part);
  show_marked(job, turn);
  float squares = 0;
  bool failed = false;
  TOWLINE_UNROLL
  for (uint32_t first = 0; first < kRowUnits; first += Row::kTogether) {
    if (Row::unit_of(first) >= row.units || failed) break;
    uint64_t values[Row::kTogether][Row::kOthers];
    failed = !row.take(part, first, values);
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < Row::kTogether; ++k) {
      if (failed || first + k >= kRowUnits || Row::unit_of(first + k) >= row.units) break;
      part.input[first + k] = row.add(part.input[first + k], part.residual[first + k], values[k], squares);
      if (job.residual != 0)
        Row::store(job.residual + row.begin + Row::unit_of(first + k) * 8, part.input[first + k]);
    }
  }
  let_next_begin_once_taken();
  const float scale = scale_of(job, sum_of_cluster(squares, failed, at, job.parts, scratch));
  if (!failed) row.normalize(part, scale);
  Control& me = control_of(job, job.rank);
  for (uint32_t block = device::thread(); block < of_part; block += device::threads())
    ++me.marked[row.first_block + block];
}

// A block's turn: run_row(odd, turn), where `odd` tells as a type whether some of this rank's data does not start at a multiple of 8.
template <class RunRow>
TOWLINE_DEVICE void run_norm_row(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks,
                                 RunRow&& run_row) {
  begin_cluster(job.parts, scratch);
  Turn turn = begin_turn(job, block, blocks);
  if (((job.in[0] | job.out[0] | job.residual | job.weight) & 7) != 0)
    run_row(std::true_type{}, turn);
  else
    run_row(std::false_type{}, turn);
  end_turn(job, turn);
}

template <class E, uint32_t kRanks>
TOWLINE_DEVICE void run_marked_norm(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  run_norm_row(job, scratch, block, blocks, [&](auto odd, Turn& turn) {
    run_marked_row<E, kRanks, decltype(odd)::value>(job, turn, scratch);
  });
}

}  // namespace towline::collectives::gpu

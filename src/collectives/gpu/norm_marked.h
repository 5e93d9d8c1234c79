// all_reduce with RMSNorm of a few rows: every rank gives its input to all others with marked stores, and all normalise all
// rows, each in a block of its own or in several blocks that add up what they have of the row (row_sum.h).
//
// Decoding asks for this once a layer, on a few KiB, so what counts is how often a thread waits for memory, and how much goes through
// one multiprocessor: with 8 ranks 28 bytes for each byte of the row. A row stays in registers from its input to its end.
#pragma once

#include "collectives/gpu/owned_units.h"

namespace towline::collectives::gpu {

// A thread stores to a unit only after it has read it, so outputs may be inputs.
template <class E, class Units>
TOWLINE_DEVICE void run_marked_row(const Job& job, Turn& turn, Scratch& scratch) {
  using Bits = typename E::Bits;
  const uint64_t row_bytes = row_bytes_of(job, sizeof(Bits));
  const RowBlocks blocks = row_blocks(job, turn.block);
  const uint32_t of_part = Units::blocks_of(job.slot);
  const uint64_t begin = blocks.part * job.slot;
  const Units row{job,
                  turn,
                  rest(row_bytes / 8, begin, job.slot),
                  blocks.first / job.parts * row_bytes + begin * 8,
                  job.weight + begin * 8,
                  turn.block * of_part};
  Control& me = control_of(job, job.rank);
  const bool counts = device::thread() < of_part;
  const uint32_t marked = counts ? me.marked[row.first_block + device::thread()] : 0;
  typename Units::Part part = {};
  row.load(part);
  row.give(part);
  row.load_beside(part);
  show_marked(job, turn);
  await_cluster(job);
  float squares = 0;
  Stopped stopped;
  const bool came = row.take_all(part, squares, stopped);
  bool failed = !came;
  const auto store = [&] {
    if (!came) return;
    if (job.residual != 0) row.store_sums(part, job.residual);
    row.empty(part);
  };
  const float scale =
      scale_of(job, sum_of_row<Units::kShort>(job, turn, blocks, squares, failed, stopped, scratch, store));
  if (!failed)
    row.each([&](uint32_t k, uint64_t unit) {
      Bits lanes[Units::kLanes];
      Bits weights[Units::kLanes];
      memcpy(lanes, &part.data[k], 8);
      memcpy(weights, &part.weight[k], 8);
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < Units::kLanes; ++i) lanes[i] = normalized<E>(job, lanes[i], scale, weights[i]);
      uint64_t result;
      memcpy(&result, lanes, 8);
      Units::store(job.out[0] + row.begin + unit * 8, result);
    });
  if (counts) me.marked[row.first_block + device::thread()] = marked + Units::kTurns;
  for (uint32_t block = device::thread() + device::threads(); block < of_part; block += device::threads())
    me.marked[row.first_block + block] += Units::kTurns;  // of the model's one thread
  report(job, turn, stopped);
}

template <class E, uint32_t kRanks>
TOWLINE_DEVICE void run_marked_norm(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  run_any_norm_row(job, scratch, block, blocks, [&](auto odd, Turn& turn) {
    constexpr bool kOdd = decltype(odd)::value;
    run_marked_row<E, MarkedUnits<E, kRanks, kOdd, kRowUnits>>(job, turn, scratch);
  });
}

// The same of rows that start at multiples of 8 and give each thread so few units that all of them stay in 64 registers. With so many, 512
// threads fit into half a multiprocessor, and smaller blocks leave more room to clusters.
constexpr uint32_t most_row_units(uint32_t ranks) { return ranks <= 2 ? 2 : 1; }
template <class E, uint32_t kRanks>
TOWLINE_DEVICE void run_marked_rows(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
#if defined(__CUDA_ARCH__)
  constexpr uint32_t kMost = most_row_units(kRanks);
#else
  constexpr uint32_t kMost = kRowUnits;
#endif
  run_norm_row(job, scratch, block, blocks, [&](Turn& turn) {
    if (kMost == 1 || job.slot <= device::threads())
      run_marked_row<E, MarkedUnits<E, kRanks, false, 1>>(job, turn, scratch);
    else
      run_marked_row<E, MarkedUnits<E, kRanks, false, kMost>>(job, turn, scratch);
  });
}

// Sums and rows in two shots (owned_units.h).
template <class E, uint32_t kRanks>
TOWLINE_DEVICE void run_owned(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
#if defined(__CUDA_ARCH__)
  constexpr uint32_t kMost = kOwnedUnitsOfThread;
#else
  constexpr uint32_t kMost = kOwnedUnitsOfBlock;
#endif
  run_any_norm_row(job, scratch, block, blocks, [&](auto odd, Turn& turn) {
    constexpr bool kOdd = decltype(odd)::value;
    const auto run = [&](auto units) {
      using Units = OwnedUnits<E, kRanks, kOdd, decltype(units)::value>;
      if (job.way == Way::kMarkedNorm)
        run_marked_row<E, Units>(job, turn, scratch);
      else
        run_marked_units<Units>(job, turn);
    };
    if (!kOdd && job.slot <= device::threads())
      run(std::integral_constant<uint32_t, 1>{});
    else
      run(std::integral_constant<uint32_t, kMost>{});
  });
}

}  // namespace towline::collectives::gpu

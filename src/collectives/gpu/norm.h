// all_reduce with what decoding engines do after it, in one kernel: the result is added to a residual, and each row of the
// sum is normalised (RMSNorm).
//
// Roundings are those of the steps one by one: the reduced element is rounded to its type, its sum with the residual again,
// and the normalised one once. Only the order in which a row's squares are added depends on the way.
#pragma once

#include <math.h>

#include "collectives/gpu/marked.h"
#include "collectives/gpu/row_sum.h"

namespace towline::collectives::gpu {

// A row's units of 8 bytes that each of its blocks has at most, and how many blocks' slots those take.
constexpr uint64_t units_of_part(uint64_t units, uint32_t parts) { return (units + parts - 1) / parts; }
constexpr uint64_t marked_blocks_of(uint64_t units, uint32_t ranks) {
  return (units + marked_slots(ranks) - 1) / marked_slots(ranks);
}

// The arithmetic of a row, whichever way it goes: a sum with its residual, the scale from the sum of a row's squares, and an element of the
// output.
template <class E>
TOWLINE_DEVICE typename E::Bits with_residual(typename E::Bits sum, typename E::Bits residual) {
  return E::narrow(E::widen(sum) + E::widen(residual));
}
TOWLINE_DEVICE float scale_of(const Job& job, float squares) {
  const float mean = squares * job.inverse_width + job.epsilon;
#if defined(__CUDA_ARCH__)
  return __frsqrt_rn(mean);  // the same on every kind of GPU
#else
  return 1.0f / sqrtf(mean);
#endif
}
template <class E>
TOWLINE_DEVICE typename E::Bits normalized(const Job& job, typename E::Bits sum, float scale,
                                           typename E::Bits weight) {
  const float scaled = E::widen(sum) * scale;
  return E::narrow(job.weight != 0 ? scaled * E::widen(weight) : scaled);
}

template <class Bits, uint32_t kLanes>
TOWLINE_DEVICE void load_lanes(uint64_t address, Bits (&lanes)[kLanes]) {
  if constexpr (kLanes * sizeof(Bits) == 16) {
    const device::Pack pack = device::load_pack(address);
    memcpy(lanes, &pack, 16);
  } else {
    static_assert(kLanes == 1);
    lanes[0] = load_any<Bits>(address);
  }
}
template <class Bits, uint32_t kLanes>
TOWLINE_DEVICE void store_lanes(uint64_t address, const Bits (&lanes)[kLanes]) {
  if constexpr (kLanes * sizeof(Bits) == 16) {
    device::Pack pack;
    memcpy(&pack, lanes, 16);
    device::store_pack(address, pack);
  } else {
    static_assert(kLanes == 1);
    store_any<Bits>(address, lanes[0]);
  }
}

TOWLINE_DEVICE void prefetch(uint64_t address) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
#else
  (void)address;
#endif
}

// The addresses that results of rows are written to: the same at every target.
struct NormTargets {
  const uint64_t* outputs;
  const uint64_t* residuals;
  uint32_t count;
};

TOWLINE_DEVICE uint64_t row_bytes_of(const Job& job, uint64_t element) { return job.width * element; }

// One row, in units of kLanes elements, whose units a thread can hold. sum_of(unit, lanes) gives the ranks' sum of a unit. A thread
// stores to a unit only after it has read it, so outputs may be inputs.
inline constexpr uint32_t kHeldUnits = 2;
template <class E, uint32_t kLanes, class SumOf>
TOWLINE_DEVICE void norm_held_row(const Job& job, uint64_t row, const NormTargets& targets, float* partial,
                                  SumOf&& sum_of) {
  using Bits = typename E::Bits;
  constexpr uint64_t kUnit = kLanes * sizeof(Bits);
  const uint64_t units = job.width / kLanes;
  const uint64_t begin = row * row_bytes_of(job, sizeof(Bits));
  const bool adds = job.residual != 0;
  Bits lanes[kHeldUnits][kLanes] = {};
  Bits weights[kHeldUnits][kLanes] = {};
  const auto each = [&](auto&& does) {
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kHeldUnits; ++k)
      if (const uint64_t unit = device::thread() + k * device::threads(); unit < units) does(k, unit);
  };
  Bits added[kHeldUnits][kLanes] = {};
  if (adds)
    each([&](uint32_t k, uint64_t unit) { load_lanes(job.residual + begin + unit * kUnit, added[k]); });
  if (job.weight != 0)
    each([&](uint32_t k, uint64_t unit) { load_lanes(job.weight + unit * kUnit, weights[k]); });
  float squares = 0;
  each([&](uint32_t k, uint64_t unit) { sum_of(unit, lanes[k]); });
  each([&](uint32_t k, uint64_t unit) {
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) {
      if (adds) lanes[k][i] = with_residual<E>(lanes[k][i], added[k][i]);
      const float value = E::widen(lanes[k][i]);
      squares += value * value;
    }
    for (uint32_t target = 0; adds && target < targets.count; ++target)
      store_lanes(targets.residuals[target] + begin + unit * kUnit, lanes[k]);
  });
  bool failed = false;  // nothing here can
  const float scale = scale_of(job, sum_of_block(squares, failed, partial));
  each([&](uint32_t k, uint64_t unit) {
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) lanes[k][i] = normalized<E>(job, lanes[k][i], scale, weights[k][i]);
    for (uint32_t target = 0; target < targets.count; ++target)
      store_lanes(targets.outputs[target] + begin + unit * kUnit, lanes[k]);
  });
  device::sync();  // the next row's partial sums lie there
}

// The same of any row. kHolds: it is done so where it fits.
template <class E, uint32_t kLanes, bool kHolds, class SumOf>
TOWLINE_DEVICE void norm_row(const Job& job, uint64_t row, const NormTargets& targets, float* partial,
                             SumOf&& sum_of) {
  using Bits = typename E::Bits;
  constexpr uint64_t kUnit = kLanes * sizeof(Bits);
  const uint64_t units = job.width / kLanes;
  if constexpr (kHolds)
    if (units <= uint64_t{kHeldUnits} * device::threads())
      return norm_held_row<E, kLanes>(job, row, targets, partial, sum_of);
  const uint64_t begin = row * row_bytes_of(job, sizeof(Bits));
  const bool adds = job.residual != 0;
  // Without a residual the sums wait in the output until their row's scale is known.
  const uint64_t* const sums = adds ? targets.residuals : targets.outputs;
  const uint64_t own = adds ? job.residual : job.out[0];
  // Fetched while the first loop waits for memory.
  for (uint64_t unit = device::thread(); job.weight != 0 && unit < units; unit += device::threads())
    prefetch(job.weight + unit * kUnit);
  float squares = 0;
  for (uint64_t unit = device::thread(); unit < units; unit += device::threads()) {
    const uint64_t at = begin + unit * kUnit;
    Bits lanes[kLanes];
    Bits added[kLanes] = {};  // read only where `adds`, which the compiler does not see
    if (adds) load_lanes(job.residual + at, added);
    sum_of(unit, lanes);
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i) {
      if (adds) lanes[i] = with_residual<E>(lanes[i], added[i]);
      const float value = E::widen(lanes[i]);
      squares += value * value;
    }
    for (uint32_t target = 0; target < targets.count; ++target) store_lanes(sums[target] + at, lanes);
  }
  bool failed = false;  // nothing here can
  const float scale = scale_of(job, sum_of_block(squares, failed, partial));
  // Two units at a time, since a store would keep the next one's loads waiting.
  const uint64_t step = device::threads();
  for (uint64_t first = device::thread(); first < units; first += 2 * step) {
    Bits lanes[2][kLanes];
    Bits weights[2][kLanes];
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < 2; ++k) {
      const uint64_t unit = first + k * step;
      if (unit >= units) continue;
      load_lanes(own + begin + unit * kUnit, lanes[k]);
      if (job.weight != 0) load_lanes(job.weight + unit * kUnit, weights[k]);
    }
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < 2; ++k) {
      const uint64_t unit = first + k * step;
      if (unit >= units) continue;
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i)
        lanes[k][i] = normalized<E>(job, lanes[k][i], scale, weights[k][i]);
      for (uint32_t target = 0; target < targets.count; ++target)
        store_lanes(targets.outputs[target] + begin + unit * kUnit, lanes[k]);
    }
  }
  device::sync();  // the next row's partial sums lie there
}

template <class E, uint32_t kLanes>
TOWLINE_DEVICE void norm_rows_of_all(const Job& job, const Turn& turn, Scratch& scratch) {
  using Bits = typename E::Bits;
  const NormTargets targets = {scratch.second, scratch.third, job.size};
  const uint64_t row_bytes = row_bytes_of(job, sizeof(Bits));
  const uint64_t step = static_cast<uint64_t>(turn.blocks) * job.size;
  for (uint64_t row = static_cast<uint64_t>(turn.block) * job.size + job.rank; row < job.rows; row += step) {
    norm_row<E, kLanes, false>(job, row, targets, scratch.partial, [&](uint64_t unit, Bits(&lanes)[kLanes]) {
      const uint64_t at = row * row_bytes + unit * kLanes * sizeof(Bits);
      typename E::Sum sums[kLanes] = {};
      constexpr uint32_t kAtOnce = 4;
      for (uint32_t first = 0; first < job.size; first += kAtOnce) {
        Bits data[kAtOnce][kLanes];
        TOWLINE_UNROLL
        for (uint32_t s = 0; s < kAtOnce; ++s)
          if (first + s < job.size) load_lanes(scratch.first[first + s] + at, data[s]);
        TOWLINE_UNROLL
        for (uint32_t s = 0; s < kAtOnce; ++s) {
          if (first + s >= job.size) continue;
          TOWLINE_UNROLL
          for (uint32_t i = 0; i < kLanes; ++i)
            sums[i] = first + s == 0 ? E::widen(data[s][i]) : sums[i] + E::widen(data[s][i]);
        }
      }
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) lanes[i] = E::narrow(sums[i]);
    });
  }
}

// Ranks of one process and GPU: each does some of the rows, from all inputs and to all outputs and residuals.
template <class E>
TOWLINE_DEVICE void run_direct_norm(const Job& job, Turn& turn, Scratch& scratch) {
  using Bits = typename E::Bits;
  uint64_t* const words[] = {scratch.first, scratch.second, scratch.third};
  const auto give = [&](uint32_t, uint32_t word) {
    return word == 0 ? job.in[0] : word == 1 ? job.out[0] : job.residual;
  };
  if (!swap<3>(job, turn, words, give)) return;
  uint64_t apart = job.weight | row_bytes_of(job, sizeof(Bits));
  for (uint32_t peer = 0; peer < job.size; ++peer)
    apart |= scratch.first[peer] | scratch.second[peer] | scratch.third[peer];
  if ((apart & 15) == 0)
    norm_rows_of_all<E, 16 / sizeof(Bits)>(job, turn, scratch);
  else
    norm_rows_of_all<E, 1>(job, turn, scratch);
  (void)meet(job, turn);
}

// Normalizes rows of this rank's own memory, after an all_reduce: in[0] to out[0].
template <class E, uint32_t kLanes>
TOWLINE_DEVICE void norm_own_rows(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  using Bits = typename E::Bits;
  const NormTargets targets = {&job.out[0], &job.residual, 1};
  for (uint64_t row = block; row < job.rows; row += blocks)
    norm_row<E, kLanes, true>(job, row, targets, scratch.partial, [&](uint64_t unit, Bits(&lanes)[kLanes]) {
      load_lanes(job.in[0] + (row * job.width + unit * kLanes) * sizeof(Bits), lanes);
    });
}

template <class E>
TOWLINE_DEVICE void run_norm(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  using Bits = typename E::Bits;
  await_those_ahead();
  if (job.way == Way::kNorm) {
    const uint64_t apart =
        job.in[0] | job.out[0] | job.residual | job.weight | row_bytes_of(job, sizeof(Bits));
    if ((apart & 15) == 0) return norm_own_rows<E, 16 / sizeof(Bits)>(job, scratch, block, blocks);
    return norm_own_rows<E, 1>(job, scratch, block, blocks);
  }
  Turn turn = begin_turn(job, block, blocks);
  run_direct_norm<E>(job, turn, scratch);
  end_turn(job, turn);
}

}  // namespace towline::collectives::gpu

// What the smallest sums are made of: units of 8 bytes that a thread has in registers from its input to the result, and gives to all
// others with marked stores. All that does not depend on other ranks is loaded first. kRanks, kOdd and kUnits are constants, since a kernel's
// code comes from memory as well: what is jumped over costs time.
#pragma once

#include "collectives/gpu/marked.h"
#include "collectives/gpu/norm.h"

namespace towline::collectives::gpu {

// Units that a thread has at most, and those of the longest row.
inline constexpr uint32_t kUnitsOfThread = 4;
inline constexpr uint64_t kMarkedRowUnits = kUnitsOfThread * kThreads;

#if defined(__CUDA_ARCH__)
inline constexpr uint32_t kRowUnits = kUnitsOfThread;
#else
inline constexpr uint32_t kRowUnits = kMarkedRowUnits;  // the model's block has one thread
#endif

// What a thread has of a block's data.
template <uint32_t kUnits>
struct UnitsPart {
  uint64_t data[kUnits];  // this rank's input, then the ranks' sum
  uint64_t residual[kUnits];
  uint64_t weight[kUnits];
  uint32_t slot[kUnits];  // its offset
};

// kRanks: of at most so many. kOdd: some of this rank's data does not start at a multiple of 8. kUnits: a thread's, at most.
template <class E, uint32_t kRanks, bool kOdd, uint32_t kUnits>
struct MarkedUnits {
  using Part = UnitsPart<kUnits>;
  using Bits = typename E::Bits;
  static constexpr uint32_t kLanes = 8 / sizeof(Bits);
  // Units whose slots a thread asks for together: with many ranks one unit has enough of them.
  static constexpr uint32_t kTogether = kUnits == 1 || kRanks > 4 ? 1 : kRanks > 2 ? 2 : 4;
  static constexpr uint32_t kSlots = marked_slots(kRanks);
  static constexpr uint32_t kTurns = 1;        // that an operation takes
  static constexpr bool kShort = kUnits == 1;  // little to store (sum_of_row)
  // How many blocks' slots so many units take.
  TOWLINE_DEVICE static uint32_t blocks_of(uint64_t units_of_block) {
    return static_cast<uint32_t>(marked_blocks_of(units_of_block, kRanks));
  }

  const Job& job;
  const Turn& turn;
  const uint64_t units;        // of this block
  const uint64_t begin;        // theirs, in bytes
  const uint64_t weight;       // theirs
  const uint32_t first_block;  // their slots are those of this block, and of the ones behind it

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
  TOWLINE_DEVICE bool is_other(uint32_t rank) const { return rank != job.rank && rank < job.size; }
  // does(k, unit) with each unit that this thread has.
  template <class Does>
  TOWLINE_DEVICE void each(Does&& does) const {
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kUnits; ++k) {
      const uint64_t unit = unit_of(k);
      if (unit >= units) break;
      does(k, unit);
    }
  }

  TOWLINE_DEVICE void load(Part& part) const {
    const Control& me = control_of(job, job.rank);
    each([&](uint32_t k, uint64_t unit) {
      part.data[k] = load(job.in[0] + begin + unit * 8);
      const auto block = first_block + static_cast<uint32_t>(unit / kSlots);
      const auto in_block = static_cast<uint32_t>(unit % kSlots);
      part.slot[k] = slot_offset(job, me.marked[block], block, in_block);
    });
  }
  TOWLINE_DEVICE void give(const Part& part) const {
    each([&](uint32_t k, uint64_t) {
      TOWLINE_UNROLL
      for (uint32_t rank = 0; rank < kRanks; ++rank)
        if (is_other(rank))
          store_marked(slot_address(job, rank, job.rank, part.slot[k], kSlots), part.data[k], job.digest);
    });
  }
  // While what was given is on its way.
  TOWLINE_DEVICE void load_beside(Part& part) const {
    each([&](uint32_t k, uint64_t unit) {
      if (job.residual != 0) part.residual[k] = load(job.residual + begin + unit * 8);
      if (job.weight != 0) part.weight[k] = load(weight + unit * 8);
    });
  }

  // What the others gave of some units, by their slots. All loads go out together, and none is behind a branch: a slot that is not asked for
  // counts as filled. False: it stopped.
  template <uint32_t kCount>
  TOWLINE_DEVICE bool take(const uint32_t (&slots)[kCount], const bool (&asked)[kCount],
                           uint64_t (&values)[kCount][kRanks], Stopped& stopped) const {
    uint32_t marks[kCount][kRanks][2];
    const auto each_slot = [](auto&& does) {
      TOWLINE_UNROLL
      for (uint32_t k = 0; k < kCount; ++k) {
        TOWLINE_UNROLL
        for (uint32_t rank = 0; rank < kRanks; ++rank) does(k, rank);
      }
    };
    each_slot([&](uint32_t k, uint32_t rank) { marks[k][rank][0] = marks[k][rank][1] = job.digest; });
    Waiter waiter;
    for (;;) {
      each_slot([&](uint32_t k, uint32_t rank) {
        load_marked_if(asked[k] && is_other(rank), slot_address(job, job.rank, rank, slots[k], kSlots),
                       values[k][rank], marks[k][rank]);
      });
      bool came = true;
      each_slot([&](uint32_t k, uint32_t rank) {
        came &= (marks[k][rank][0] == job.digest) & (marks[k][rank][1] == job.digest);
      });
      if (came) return true;
      if (ends(waiter, stopped, [&](auto&& does) {
            each_slot([&](uint32_t k, uint32_t rank) { does(rank, marks[k][rank]); });
          }))
        return false;
    }
  }
  // After a look that came too early, whose marks each_mark(does) gives as does(rank, marks). True: the wait has stopped.
  template <class EachMark>
  TOWLINE_DEVICE bool ends(Waiter& waiter, Stopped& stopped, EachMark&& each_mark) const {
    device::pause();
    if ((++waiter.turns & 63) != 0) return false;
    uint32_t missing = 0;
    uint32_t digest = 0;
    each_mark([&](uint32_t rank, const uint32_t(&found)[2]) {
      if (digest != 0 || (found[0] == job.digest && found[1] == job.digest)) return;
      missing = rank;
      digest = other_digest(found, job.digest);
    });
    if (digest == 0)
      return stops_now(job, waiter, missing, signal_of(job, turn, missing), turn.epoch, stopped);
    stop(job, missing, digest, stopped);
    return true;
  }

  // Makes the inputs the sums, and adds to `squares`. False: it stopped.
  TOWLINE_DEVICE bool take_all(Part& part, float& squares, Stopped& stopped) const {
    TOWLINE_UNROLL
    for (uint32_t first = 0; first < kUnits; first += kTogether) {
      if (unit_of(first) >= units) break;
      uint64_t values[kTogether][kRanks] = {};
      uint32_t slots[kTogether];
      bool asked[kTogether];
      TOWLINE_UNROLL
      for (uint32_t k = 0; k < kTogether; ++k) {
        asked[k] = first + k < kUnits && unit_of(first + k) < units;
        slots[k] = first + k < kUnits ? part.slot[first + k] : 0;
      }
      if (!take(slots, asked, values, stopped)) return false;
      TOWLINE_UNROLL
      for (uint32_t k = 0; k < kTogether; ++k) {
        if (first + k >= kUnits || unit_of(first + k) >= units) break;
        part.data[first + k] = add(part.data[first + k], part.residual[first + k], values[k], squares);
      }
    }
    return true;
  }

  TOWLINE_DEVICE void store_sums(const Part& part, uint64_t to) const {
    each([&](uint32_t k, uint64_t unit) { store(to + begin + unit * 8, part.data[k]); });
  }
  // Empties the slots for their next use, which comes two operations later and so after every rank has seen this one's end.
  TOWLINE_DEVICE void empty(const Part& part) const {
    each([&](uint32_t k, uint64_t) {
      TOWLINE_UNROLL
      for (uint32_t rank = 0; rank < kRanks; ++rank)
        if (is_other(rank)) store_marked(slot_address(job, job.rank, rank, part.slot[k], kSlots), 0, 0);
    });
  }

  // The ranks' sum, in their order, and the residual. Adds to `squares`.
  TOWLINE_DEVICE uint64_t add(uint64_t mine, uint64_t residual, const uint64_t (&others)[kRanks],
                              float& squares) const {
    typename E::Sum sums[kLanes] = {};  // rank 0 sets them, which not every compiler sees
    Bits lanes[kLanes];
    TOWLINE_UNROLL
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank >= job.size) break;
      const uint64_t value = rank == job.rank ? mine : others[rank];
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
};

// all_reduce of floats, which are added up.
template <class Units>
TOWLINE_DEVICE void run_marked_units(const Job& job, Turn& turn) {
  const uint64_t begin = turn.block * job.slot;
  const Units units{job, turn, rest(job.bytes / 8, begin, job.slot), begin * 8, 0, turn.block};
  Control& me = control_of(job, job.rank);
  const uint32_t marked = me.marked[turn.block];
  typename Units::Part part = {};
  units.load(part);
  units.give(part);
  show_marked(job, turn);
  float squares = 0;
  Stopped stopped;
  const bool came = units.take_all(part, squares, stopped);
  device::sync();
  let_next_begin();  // no thread waits any more
  if (came) {
    units.store_sums(part, job.out[0]);
    units.empty(part);
  }
  if (device::thread() == 0) me.marked[turn.block] = marked + Units::kTurns;
  report(job, turn, stopped);
}
#if defined(__CUDA_ARCH__)
template <uint32_t kRanks>
inline constexpr uint32_t kSumUnits = marked_slots(kRanks) / (kThreads / 2);
#else
template <uint32_t kRanks>
inline constexpr uint32_t kSumUnits = marked_slots(kRanks);
#endif
template <class E, uint32_t kRanks>
TOWLINE_DEVICE void run_marked_sum(const Job& job, uint32_t block, uint32_t blocks) {
  Turn turn = begin_turn(job, block, blocks);
  if (job.slot <= device::threads())
    run_marked_units<MarkedUnits<E, kRanks, false, 1>>(job, turn);
  else
    run_marked_units<MarkedUnits<E, kRanks, false, kSumUnits<kRanks>>>(job, turn);
  end_turn(job, turn);
}

}  // namespace towline::collectives::gpu

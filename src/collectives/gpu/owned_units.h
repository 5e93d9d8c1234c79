// Small sums of several ranks in two shots: each unit has an owner, the one rank that gets all inputs of it and gives its sum to the others. With
// N ranks that moves 2 / N of what goes when all get everything (marked_units.h), for one more way through memory.
//
// All units of a warp have one owner, and every rank owns as many of a block's. So a thread waits either for all ranks' inputs or for one sum,
// and no block has more to do than others.
#pragma once

#include "collectives/gpu/marked_units.h"
#include "collectives/gpu/row_sum.h"

namespace towline::collectives::gpu {

// Units that a thread has at most, which stay in 64 registers, and those of a block.
inline constexpr uint32_t kOwnedUnitsOfThread = 2;
inline constexpr uint64_t kOwnedUnitsOfBlock = kOwnedUnitsOfThread * kThreads;
static_assert(kOwnedUnitsOfBlock <= 2 * kMarkedSlots);  // of three ranks and more

template <class E, uint32_t kRanks, bool kOdd, uint32_t kUnits>
struct OwnedUnits : MarkedUnits<E, kRanks, kOdd, kUnits> {
  using Base = MarkedUnits<E, kRanks, kOdd, kUnits>;
  using Bits = typename E::Bits;
  using Base::each, Base::job, Base::turn, Base::is_other, Base::kSlots, Base::kLanes;
  static constexpr uint32_t kGroup = 32;  // units with the same owner
  static constexpr uint32_t kTurns = 2;   // of inputs, and of sums
  static constexpr bool kShort = true;
  TOWLINE_DEVICE static uint32_t blocks_of(uint64_t) { return 1; }
  struct Part : UnitsPart<kUnits> {
    uint32_t owner[kUnits];
    uint32_t to_sums;  // from the slot of a unit's inputs to that of its sum
  };

  TOWLINE_DEVICE void load(Part& part) const {
    const uint32_t marked = control_of(job, job.rank).marked[turn.block];
    part.to_sums = slot_offset(job, marked + 1, turn.block, 0) - slot_offset(job, marked, turn.block, 0);
    // A thread's second unit would have the owner of its first one.
    const bool turns = warps() % job.size == 0;
    each([&](uint32_t k, uint64_t unit) {
      part.data[k] = Base::load(job.in[0] + this->begin + unit * 8);
      const auto group = static_cast<uint32_t>(unit / kGroup);
      const uint32_t row = job.size == kRanks ? group / kRanks : group / job.size;
      const uint32_t owner = group - row * job.size + (turns ? k : 0);
      part.owner[k] = owner < job.size ? owner : owner - job.size;
      part.slot[k] =
          slot_offset(job, marked, turn.block, row * kGroup + static_cast<uint32_t>(unit % kGroup));
    });
  }
  TOWLINE_DEVICE bool owns(const Part& part, uint32_t k) const { return part.owner[k] == job.rank; }
  // Where a rank finds a unit's sum.
  TOWLINE_DEVICE uint64_t sum_at(uint32_t rank, uint32_t owner, const Part& part, uint32_t slot) const {
    return slot_address(job, rank, owner, slot + part.to_sums, kSlots);
  }

  TOWLINE_DEVICE void give(const Part& part) const {
    each([&](uint32_t k, uint64_t) {
      if (!owns(part, k))
        store_marked(slot_address(job, part.owner[k], job.rank, part.slot[k], kSlots), part.data[k],
                     job.digest);
    });
  }
  // The place of an own unit's residual: on a GPU a thread owns one at most.
  TOWLINE_DEVICE static constexpr uint32_t own(uint32_t k) {
#if defined(__CUDA_ARCH__)
    static_assert(kUnits <= 2);
    return 0;
#else
    return k;
#endif
  }
  // While what was given is on its way.
  TOWLINE_DEVICE void load_beside(Part& part) const {
    if (job.residual == 0) return;
    each([&](uint32_t k, uint64_t unit) {
      if (owns(part, k)) part.residual[own(k)] = Base::load(job.residual + this->begin + unit * 8);
    });
  }

  // Makes the inputs the sums, and adds to `squares`. False: it stopped.
  TOWLINE_DEVICE bool take_all(Part& part, float& squares, Stopped& stopped) const {
    if (!add_own(part, stopped)) return false;
    if (job.weight != 0)
      each([&](uint32_t k, uint64_t unit) { part.weight[k] = Base::load(this->weight + unit * 8); });
    if (!take_sums(part, stopped)) return false;
    // In the same order at every rank, whatever it owns.
    each([&](uint32_t k, uint64_t) {
      Bits lanes[kLanes];
      memcpy(lanes, &part.data[k], 8);
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) {
        const float value = E::widen(lanes[i]);
        squares += value * value;
      }
    });
    return true;
  }

  // Adds up the units that this rank owns, and gives their sums.
  TOWLINE_DEVICE bool add_own(Part& part, Stopped& stopped) const {
#if defined(__CUDA_ARCH__)
    uint32_t owned = kUnits;
    uint64_t data = 0;
    uint32_t slot = 0;
    each([&](uint32_t k, uint64_t) {
      if (!owns(part, k)) return;
      owned = k;
      data = part.data[k];
      slot = part.slot[k];
    });
    if (owned == kUnits) return true;
    if (!add_one(part, slot, part.residual[0], data, stopped)) return false;
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kUnits; ++k)
      if (k == owned) part.data[k] = data;
#else
    for (uint32_t k = 0; k < kUnits && Base::unit_of(k) < this->units; ++k)
      if (owns(part, k) && !add_one(part, part.slot[k], part.residual[k], part.data[k], stopped))
        return false;
#endif
    return true;
  }
  TOWLINE_DEVICE bool add_one(const Part& part, uint32_t slot, uint64_t residual, uint64_t& data,
                              Stopped& stopped) const {
    const uint32_t slots[] = {slot};
    const bool asked[] = {true};
    uint64_t values[1][kRanks] = {};
    if (!Base::take(slots, asked, values, stopped)) return false;
    float squares = 0;
    data = Base::add(data, residual, values[0], squares);
    TOWLINE_UNROLL
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      if (is_other(rank)) store_marked(sum_at(rank, job.rank, part, slot), data, job.digest);
    return true;
  }

  // Those of the units that others own.
  TOWLINE_DEVICE bool take_sums(Part& part, Stopped& stopped) const {
    uint32_t marks[kUnits][2];
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kUnits; ++k) marks[k][0] = marks[k][1] = job.digest;
    Waiter waiter;
    for (;;) {
      bool came = true;
      TOWLINE_UNROLL
      for (uint32_t k = 0; k < kUnits; ++k)
        load_marked_if(Base::unit_of(k) < this->units && !owns(part, k),
                       sum_at(job.rank, part.owner[k], part, part.slot[k]), part.data[k], marks[k]);
      TOWLINE_UNROLL
      for (uint32_t k = 0; k < kUnits; ++k) came &= (marks[k][0] == job.digest) & (marks[k][1] == job.digest);
      if (came) return true;
      const auto each_mark = [&](auto&& does) {
        TOWLINE_UNROLL
        for (uint32_t k = 0; k < kUnits; ++k) does(part.owner[k], marks[k]);
      };
      if (Base::ends(waiter, stopped, each_mark)) return false;
    }
  }

  // As its namesake.
  TOWLINE_DEVICE void empty(const Part& part) const {
    each([&](uint32_t k, uint64_t) {
      if (!owns(part, k)) return store_marked(sum_at(job.rank, part.owner[k], part, part.slot[k]), 0, 0);
      TOWLINE_UNROLL
      for (uint32_t rank = 0; rank < kRanks; ++rank)
        if (is_other(rank)) store_marked(slot_address(job, job.rank, rank, part.slot[k], kSlots), 0, 0);
    });
  }
};

}  // namespace towline::collectives::gpu

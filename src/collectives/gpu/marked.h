// The smallest operations: data and its mark go in one store, so that nobody waits for a signal after them.
#pragma once

#include "collectives/gpu/shares.h"

namespace towline::collectives::gpu {

// A slot's bytes from a rank's first one, for what the lowest rank gives; the same at every rank. So that what a thread does for each rank
// is an addition.
TOWLINE_DEVICE uint32_t slot_offset(const Job& job, uint32_t turn, uint32_t block, uint32_t slot) {
  return (((turn % kMarkedTurns * marked_blocks(job.size) + block) * job.size) * marked_slots(job.size) +
          slot) *
         16;
}
// `slots`: marked_slots(job.size).
TOWLINE_DEVICE uint64_t slot_address(const Job& job, uint32_t at, uint32_t from, uint32_t offset,
                                     uint32_t slots) {
  return job.segment[at] + kMarkedAt + offset + from * (slots * 16);
}
TOWLINE_DEVICE uint64_t slot_address(const Job& job, uint32_t at, uint32_t from, uint32_t offset) {
  return slot_address(job, at, from, offset, marked_slots(job.size));
}
static_assert(marked_bytes(2) < uint64_t{1} << 32 && marked_bytes(4) < uint64_t{1} << 32 &&
              marked_bytes(kMarkedRanks) < uint64_t{1} << 32);

TOWLINE_DEVICE uint64_t load8(uint64_t address, uint64_t bytes) {
  if (bytes >= 8) return load_any<uint64_t>(address);
  uint64_t value = 0;
  for (uint32_t i = 0; i < bytes; ++i)
    value |= static_cast<uint64_t>(device::load_unit<uint8_t>(address + i)) << (8 * i);
  return value;
}
TOWLINE_DEVICE void store8(uint64_t address, uint64_t value, uint64_t bytes) {
  if (bytes >= 8) return store_any<uint64_t>(address, value);
  for (uint32_t i = 0; i < bytes; ++i)
    device::store_unit<uint8_t>(address + i, static_cast<uint8_t>(value >> (8 * i)));
}

// The same, short where it is in line: what is rare is apart. Parts of odd sizes often start between two multiples of 8.
TOWLINE_DEVICE_CALL uint64_t load8_apart(uint64_t address, uint64_t bytes) { return load8(address, bytes); }
TOWLINE_DEVICE uint64_t load8_short(uint64_t address, uint64_t bytes) {
  if (bytes < 8 || (address & 3) != 0) return load8_apart(address, bytes);
  if ((address & 7) == 0) return device::load_unit<uint64_t>(address);
  const uint64_t low = device::load_unit<uint32_t>(address);
  return static_cast<uint64_t>(device::load_unit<uint32_t>(address + 4)) << 32 | low;
}
TOWLINE_DEVICE_CALL void store8_apart(uint64_t address, uint64_t value, uint64_t bytes) {
  store8(address, value, bytes);
}
TOWLINE_DEVICE void store8_short(uint64_t address, uint64_t value, uint64_t bytes) {
  if (bytes < 8 || (address & 3) != 0) return store8_apart(address, value, bytes);
  if ((address & 7) == 0) return device::store_unit<uint64_t>(address, value);
  device::store_unit<uint32_t>(address, static_cast<uint32_t>(value));
  device::store_unit<uint32_t>(address + 4, static_cast<uint32_t>(value >> 32));
}

// The 8 bytes of one slot (its offset) of each rank in `missing`. The slots are emptied for their next use, which comes two operations later
// and so after every rank has seen this one's end. False: failed.
TOWLINE_DEVICE bool take_marked(const Job& job, const Turn& turn, uint32_t slot, uint32_t missing,
                                uint64_t mine, uint64_t (&values)[kMarkedRanks]) {
  Waiter waiter;
  uint32_t marks[kMarkedRanks][2];
  TOWLINE_UNROLL
  for (uint32_t peer = 0; peer < kMarkedRanks; ++peer)
    if (peer == job.rank) values[peer] = mine;
  while (missing != 0) {
    TOWLINE_UNROLL
    for (uint32_t peer = 0; peer < kMarkedRanks; ++peer)
      if ((missing >> peer & 1) != 0)
        load_marked(slot_address(job, job.rank, peer, slot), values[peer], marks[peer]);
    uint32_t waited = job.size;
    TOWLINE_UNROLL
    for (uint32_t peer = 0; peer < kMarkedRanks; ++peer) {
      if ((missing >> peer & 1) == 0) continue;
      if (marks[peer][0] == job.digest && marks[peer][1] == job.digest) {
        missing &= ~(1u << peer);
        store_marked(slot_address(job, job.rank, peer, slot), 0, 0);
      } else if (const uint32_t other = other_digest(marks[peer], job.digest); other != 0) {
        disagree_with(job, peer, other);
        return false;
      } else {
        waited = peer;
      }
    }
    if (missing != 0 && give_up(job, waiter, waited, signal_of(job, turn, waited), turn.epoch)) return false;
  }
  return true;
}

template <class E>
TOWLINE_DEVICE uint64_t scaled8(const Job& job, uint64_t value) {
  if constexpr (!std::is_same_v<E, NoElement> && !std::is_same_v<E, BoolElement>) {
    using Bits = typename E::Bits;
    if (job.reduces != 0 && job.mark.reduction == TOWLINE_REDUCE_PREMUL_SUM) {
      Bits lanes[8 / sizeof(Bits)];
      memcpy(lanes, &value, 8);
      TOWLINE_UNROLL
      for (Bits& lane : lanes) lane = scale_one<E>(lane, job.factor);
      memcpy(&value, lanes, 8);
    }
  }
  return value;
}

template <class E>
TOWLINE_DEVICE uint64_t reduce8(const Job& job, const uint64_t (&values)[kMarkedRanks]) {
  using Bits = typename E::Bits;
  constexpr uint32_t kLanes = 8 / sizeof(Bits);
  typename E::Sum sums[kLanes] = {};  // peer 0 sets them, which not every compiler sees
  const bool plain = is_sum(job.mark.reduction);
  Bits lanes[kLanes];
  TOWLINE_UNROLL
  for (uint32_t peer = 0; peer < kMarkedRanks; ++peer) {
    if (peer >= job.size) continue;
    memcpy(lanes, &values[peer], 8);
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < kLanes; ++i)
      sums[i] =
          peer == 0 ? E::widen(lanes[i]) : combine<E>(sums[i], E::widen(lanes[i]), job.mark.reduction, plain);
  }
  TOWLINE_UNROLL
  for (uint32_t i = 0; i < kLanes; ++i) lanes[i] = finish<E>(sums[i], job.mark.reduction, job.size);
  uint64_t result;
  memcpy(&result, lanes, 8);
  return result;
}

// Nobody waits for these, but a rank that is at another operation sees that this one is not.
TOWLINE_DEVICE void show_marked(const Job& job, Turn& turn) {
  ++turn.epoch;
  for (uint32_t peer = device::thread(); peer < job.size; peer += device::threads())
    set_signal(job, turn, peer, false);
}

TOWLINE_DEVICE uint32_t others(const Job& job) { return ((1u << job.size) - 1) & ~(1u << job.rank); }

// One slot of each rank's part. All are loaded before the first is stored, which the loads would wait for.
template <class E>
TOWLINE_DEVICE void give_parts(const Job& job, const Turn& turn, uint32_t marked, uint32_t slot,
                               uint64_t at) {
  uint64_t values[kMarkedRanks];
  const uint32_t offset = slot_offset(job, marked, turn.block, slot);
  TOWLINE_UNROLL
  for (uint32_t peer = 0; peer < kMarkedRanks; ++peer)
    if (peer < job.size && peer != job.rank) values[peer] = load8_short(job.in[peer] + at, job.bytes - at);
  TOWLINE_UNROLL
  for (uint32_t peer = 0; peer < kMarkedRanks; ++peer)
    if (peer < job.size && peer != job.rank)
      store_marked(slot_address(job, peer, job.rank, offset), scaled8<E>(job, values[peer]), job.digest);
}

// Each rank gives all others the same bytes, or a part each. A thread has read a slot's bytes of every part before it writes
// there, so an output may be an input.
template <class E>
TOWLINE_DEVICE void run_marked(const Job& job, Turn& turn) {
  Control& me = control_of(job, job.rank);
  const uint32_t marked = me.marked[turn.block];
  const uint64_t units = (job.bytes + 7) / 8;
  const uint64_t begin = turn.block * job.slot;
  const auto slots = static_cast<uint32_t>(rest(units, begin, job.slot));
  const bool parts = job.way == Way::kMarkedParts;
  const uint64_t kept = job.in[parts ? job.rank : 0];
  const uint64_t result = job.out[parts ? job.rank : 0];
  for (uint32_t slot = device::thread(); slot < slots; slot += device::threads()) {
    const uint64_t at = (begin + slot) * 8;
    if (parts) {
      give_parts<E>(job, turn, marked, slot, at);
      continue;
    }
    const uint64_t value = scaled8<E>(job, load8_short(kept + at, job.bytes - at));
    const uint32_t offset = slot_offset(job, marked, turn.block, slot);
    TOWLINE_UNROLL
    for (uint32_t peer = 0; peer < kMarkedRanks; ++peer)
      if (peer < job.size && peer != job.rank)
        store_marked(slot_address(job, peer, job.rank, offset), value, job.digest);
  }
  show_marked(job, turn);
  for (uint32_t slot = device::thread(); slot < slots; slot += device::threads()) {
    const uint64_t at = (begin + slot) * 8;
    const uint64_t mine = scaled8<E>(job, load8_short(kept + at, job.bytes - at));
    uint64_t values[kMarkedRanks];
    if (!take_marked(job, turn, slot_offset(job, marked, turn.block, slot), others(job), mine, values)) break;
    if constexpr (!std::is_same_v<E, NoElement>) {
      store8_short(result + at, reduce8<E>(job, values), job.bytes - at);
    } else {
      TOWLINE_UNROLL
      for (uint32_t peer = 0; peer < kMarkedRanks; ++peer)
        if (peer < job.size) store8_short(job.out[peer] + at, values[peer], job.bytes - at);
    }
  }
  device::sync();
  let_next_begin();  // no thread waits any more
  if (device::thread() == 0) me.marked[turn.block] = marked + 1;
}

// all_reduce: each rank reduces a part and gives all its result, both with marks. A block has the same slots of every part.
template <class E>
TOWLINE_DEVICE void run_marked_two(const Job& job, Turn& turn) {
  Control& me = control_of(job, job.rank);
  const uint32_t inputs = me.marked[turn.block];
  const uint32_t results = inputs + 1;
  const uint64_t units = (job.bytes + 7) / 8;
  const uint64_t each = (units + job.size - 1) / job.size;
  const uint64_t begin = turn.block * job.slot;
  const auto slots_of = [&](uint32_t part) {
    return static_cast<uint32_t>(rest(rest(units, part * each, each), begin, job.slot));
  };
  const auto give = [&](uint32_t to, uint32_t turn_of, uint32_t slot, uint64_t value) {
    store_marked(slot_address(job, to, job.rank, slot_offset(job, turn_of, turn.block, slot)), value,
                 job.digest);
  };
  for (uint32_t i = 1; i < job.size; ++i) {
    const uint32_t peer = (job.rank + i) % job.size;
    const uint32_t slots = slots_of(peer);
    for (uint32_t slot = device::thread(); slot < slots; slot += device::threads()) {
      const uint64_t at = (peer * each + begin + slot) * 8;
      give(peer, inputs, slot, scaled8<E>(job, load8_short(job.in[0] + at, job.bytes - at)));
    }
  }
  show_marked(job, turn);
  uint64_t values[kMarkedRanks];
  const uint32_t mine = slots_of(job.rank);
  bool failed = false;
  for (uint32_t slot = device::thread(); slot < mine && !failed; slot += device::threads()) {
    const uint64_t at = (job.rank * each + begin + slot) * 8;
    failed = !take_marked(job, turn, slot_offset(job, inputs, turn.block, slot), others(job),
                          scaled8<E>(job, load8_short(job.in[0] + at, job.bytes - at)), values);
    if (failed) break;
    const uint64_t result = reduce8<E>(job, values);
    for (uint32_t i = 1; i < job.size; ++i) give((job.rank + i) % job.size, results, slot, result);
    store8_short(job.out[0] + at, result, job.bytes - at);
  }
  const uint32_t most = slots_of(0);  // later parts are no larger
  for (uint32_t slot = device::thread(); slot < most && !failed; slot += device::threads()) {
    uint32_t expected = 0;
    for (uint32_t peer = 0; peer < job.size; ++peer)
      if (peer != job.rank && slot < slots_of(peer)) expected |= 1u << peer;
    failed = !take_marked(job, turn, slot_offset(job, results, turn.block, slot), expected, 0, values);
    if (failed) break;
    TOWLINE_UNROLL
    for (uint32_t peer = 0; peer < kMarkedRanks; ++peer) {
      const uint64_t at = (peer * each + begin + slot) * 8;
      if ((expected >> peer & 1) != 0) store8_short(job.out[0] + at, values[peer], job.bytes - at);
    }
  }
  device::sync();
  let_next_begin();  // no thread waits any more
  if (device::thread() == 0) me.marked[turn.block] = inputs + 2;
}

}  // namespace towline::collectives::gpu

// Kernels of an application over a window, for tests: the functions of towline/device/symmetric.cuh.
#pragma once

#include "towline/device/symmetric.cuh"

namespace towline::gpu_test {

inline constexpr uint64_t kOk = 1;
inline constexpr uint64_t kLate = 2;

struct DeviceTry {
  device::Symmetric group;
  uint64_t source;  // `bytes` of this rank
  uint64_t result;  // `bytes`, then a word for the outcome
  uint64_t bytes;
  uint64_t round;  // from 1 on
  uint64_t limit_ns;
};

TOWLINE_DEVICE void tell(const DeviceTry& what, uint64_t outcome) {
  if (device::thread() == 0)
    device::store_release(reinterpret_cast<uint64_t*>(what.result + what.bytes), outcome);
}

// Each rank puts its bytes into the next one's memory, signals, waits for the one before, meets all in a barrier, and
// gets what the next one has by then: its own bytes.
TOWLINE_DEVICE void go_round(const DeviceTry& what) {
  const device::Symmetric& group = what.group;
  const uint32_t next = (group.rank + 1) % group.size;
  const uint32_t before = (group.rank + group.size - 1) % group.size;
  device::put(group, next, 0, reinterpret_cast<const void*>(what.source), what.bytes);
  device::signal(group, next, 0);
  if (!device::wait(group, before, 0, what.round, what.limit_ns)) return tell(what, kLate);
  if (!device::barrier(group, 1, 2 * what.round - 1, what.limit_ns)) return tell(what, kLate);
  device::get(group, next, 0, reinterpret_cast<void*>(what.result), what.bytes);
  // Nobody puts the next round before all have got this one.
  if (!device::barrier(group, 1, 2 * what.round, what.limit_ns)) return tell(what, kLate);
  tell(what, kOk);
}

TOWLINE_DEVICE void wait_in_vain(const DeviceTry& what) {
  const uint32_t next = (what.group.rank + 1) % what.group.size;
  tell(what, device::wait(what.group, next, 2, 1, what.limit_ns) ? kOk : kLate);
}

}  // namespace towline::gpu_test

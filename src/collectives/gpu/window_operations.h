// Window operations in kernels. A rank's signals are words that count up; a rank that sees one sees the puts before it, too.
#pragma once

#include "collectives/gpu/waiting.h"

namespace towline::collectives::gpu {

inline constexpr uint64_t kSignalCame = 1;
inline constexpr uint64_t kSignalLate = 2;

TOWLINE_DEVICE void run_move(const Job& job, uint32_t block, uint32_t blocks) {
  const uint64_t share = (job.bytes / blocks + 15) / 16 * 16;
  const uint64_t begin = share * block < job.bytes ? share * block : job.bytes;
  const uint64_t end = block + 1 == blocks || begin + share > job.bytes ? job.bytes : begin + share;
  device::copy(job.out[0] + begin, job.in[0] + begin, end - begin);
}

TOWLINE_DEVICE void run_signal(const Job& job) {
  if (device::thread() != 0) return;
  auto* const word = reinterpret_cast<uint64_t*>(job.in[0]);
  device::fence();
  device::store_release(word, device::load_relaxed(word) + 1);
}

// With a word for the outcome (out[0]) a signal that is late is told there; else it breaks the communicator.
TOWLINE_DEVICE void run_await(const Job& job) {
  if (device::thread() != 0) return;
  const auto* const word = reinterpret_cast<const uint64_t*>(job.in[0]);
  auto* const taken = reinterpret_cast<uint64_t*>(job.in[1]);
  auto* const outcome = reinterpret_cast<uint64_t*>(job.out[0]);
  const uint64_t wanted = device::load_relaxed(taken) + 1;
  const uint64_t began = device::now_ns();
  Waiter waiter;
  while (device::load_acquire(word) < wanted) {
    if (give_up(job, waiter, job.peer, nullptr, 0)) return;
    if (outcome != nullptr && device::now_ns() - began >= job.bytes)
      return device::store_release(outcome, kSignalLate);
  }
  device::store_relaxed(taken, wanted);
  if (outcome != nullptr) device::store_release(outcome, kSignalCame);
}

}  // namespace towline::collectives::gpu

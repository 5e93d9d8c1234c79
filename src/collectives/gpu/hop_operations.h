// Hops in kernels: words that a processor takes, while the stream goes on. A later kernel waits for it (run_await).
#pragma once

#include "collectives/gpu/waiting.h"

namespace towline::collectives::gpu {

TOWLINE_DEVICE uint64_t hop_word(const Job& job, uint32_t i) {
  const uint32_t of = i % kMaxRanks;
  switch (i / kMaxRanks) {
    case 0:
      return job.in[of];
    case 1:
      return job.in_bytes[of];
    case 2:
      return job.out[of];
    default:
      return job.out_bytes[of];
  }
}

TOWLINE_DEVICE void run_post(const Job& job) {
  if (device::thread() != 0 || check_broken(job)) return;
  auto* const posted = reinterpret_cast<uint64_t*>(job.residual);
  const uint64_t number = device::load_relaxed(posted);
  uint64_t* const entry = reinterpret_cast<uint64_t*>(job.weight) + number % kHopRing * kHopWords;
  for (uint32_t i = 0; i < kHopWords; ++i) entry[i] = hop_word(job, i);
  device::fence();  // what the kernels before this one wrote comes first, too
  device::store_release(posted, number + 1);
}

}  // namespace towline::collectives::gpu

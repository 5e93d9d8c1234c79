// Waiting for copies that were begun and can't be called back.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/sync/spin.h"
#include "gpu/device.h"

namespace towline::cuda {

// How long closing an agent waits for a copy. A running worker checks again instead.
inline constexpr uint64_t kQuietWithinNs = kSecondNs;
// How long a graph that is being recorded waits for a page list on its way to the GPU.
inline constexpr uint64_t kListWithinNs = kSecondNs;

// For a closed valve: true when no run that it admitted moves any more. On a broken GPU nothing moves.
inline bool is_quiet(const Valve& valve, CopyQueue& queue) noexcept {
  if (valve.quiet()) return true;
  const Code code = queue.state();
  return code != 0 && code != CopyQueue::kBusy;
}

// False: it is not, and the time is over.
template <class Done>
bool wait_within(uint64_t limit_ns, Done&& done) noexcept {
  const uint64_t until_ns = monotonic_now_ns() + limit_ns;
  while (!done()) {
    if (monotonic_now_ns() >= until_ns) return false;
    cpu_pause();
  }
  return true;
}

// Keeps objects that an unending copy may still use: they are never freed on purpose, and stay reachable for
// leak checkers as far as there is memory for that.
void keep_for_good(const void* object) noexcept;

// The same of a value, whose destructor never runs, with or without memory.
template <class T>
void keep_value_for_good(T value) noexcept {
  static_assert(std::is_nothrow_move_constructible_v<T>);
  if (const auto* const kept = new (std::nothrow) T(std::move(value))) return keep_for_good(kept);
  alignas(T) std::byte here[sizeof(T)];
  new (here) T(std::move(value));
}

}  // namespace towline::cuda

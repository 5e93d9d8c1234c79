// Runs a hop on the thread of a strand: `words` hold the Hop that the strand's owner has posted.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <exception>

#include "collectives/cpu_backend.h"

namespace towline::collectives {

// Runs it. Nothing may be thrown on that thread: the communicator breaks instead, of which `what` says with what it could
// not go on.
template <class Hop, class Run>
int32_t run_hop(CpuBackend& cpu, const char* what, const uint64_t* words, Run run) noexcept {
  Hop hop;
  std::memcpy(&hop, words, sizeof hop);
  try {
    return static_cast<int32_t>(run(hop));
  } catch (const std::exception& error) {
    return static_cast<int32_t>(cpu.breaker().raise_or_break(Status::kOutOfMemory, [&] {
      return fmt::format("rank {} could not go on with {}: {}", cpu.rank(), what, error.what());
    }));
  }
}

}  // namespace towline::collectives

// The part of Abseil that test_transfer.cpp uses.
#pragma once

#include <chrono>

namespace absl {
inline std::chrono::steady_clock::time_point Now() { return std::chrono::steady_clock::now(); }
inline double ToDoubleSeconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}
}  // namespace absl

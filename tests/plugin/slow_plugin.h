// Shared by the test and the plugin slow_plugin.cc: which steps are held, and which hang there now.
#pragma once

#include <atomic>
#include <cstdint>

inline constexpr uint32_t kSlowImport = 1;
inline constexpr uint32_t kSlowAdd = 2;

struct SlowHold {
  std::atomic<uint32_t> held{0};
  std::atomic<uint32_t> inside{0};
};

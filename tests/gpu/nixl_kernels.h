// Kernels of an application over NIXL's views of memory, for tests: the functions of nixl_device.cuh.
#pragma once

#include <nixl_device.cuh>

namespace towline::gpu_test {

struct ViewTry {
  nixlMemViewElem source;
  nixlMemViewElem target;
  nixlMemViewElem counter;
  uint64_t bytes;    // a multiple of 16 for each thread of the grid
  uint64_t level;    // nixl_gpu_level_t
  uint64_t outcome;  // address of a word: the number of calls that did not succeed
};

struct ViewWait {
  uint64_t counter;  // address
  uint64_t count;
  uint64_t bytes;
  uint64_t data;      // address
  uint64_t expected;  // address of what shall lie there once the counter is there
  uint64_t outcome;   // address of a word: bytes that differ, or kNeverCame
  uint64_t limit_ns;
};

inline constexpr uint64_t kNeverCame = UINT64_MAX;

}  // namespace towline::gpu_test

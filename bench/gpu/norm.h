// all_reduce fused with a residual addition and RMSNorm, in turns with the all_reduce alone, in graphs.
#pragma once

#include <string>
#include <vector>

namespace bench::gpu {

struct NormOptions {
  std::string plugin;      // libtowline_collectives_gpu.so; empty: the one beside the library
  std::vector<int> ranks;  // how many at a time; none: two, four, eight, as far as there are GPUs
  int rounds = 9;
};

// Prints a table for each number of ranks. False: some number was wrong.
bool measure_norms(const NormOptions& options);

}  // namespace bench::gpu

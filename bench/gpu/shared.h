// all_reduces of ranks that share one GPU, as threads of one process, in turns with a plain kernel, in graphs.
#pragma once

#include <string>
#include <vector>

namespace bench::gpu {

struct SharedOptions {
  std::string plugin;             // libtowline_collectives_gpu.so; empty: the one beside the library
  std::vector<int> ranks;         // how many at a time; none: two, four, eight
  std::vector<std::string> ways;  // name|settings of [tuning.collectives], ';' between: more contenders
  int rounds = 9;
};

// Prints a table for each number of ranks. False: some number was wrong.
bool measure_shared(const SharedOptions& options);

}  // namespace bench::gpu

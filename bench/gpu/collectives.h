// Collectives of ranks with a GPU each, in turns with NCCL in graphs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench::gpu {

struct CollectivesOptions {
  std::string plugin;      // libtowline_collectives_gpu.so; empty: the one beside the library
  std::string nccl;        // libnccl.so.2; empty: as the loader finds it
  std::vector<int> ranks;  // how many at a time; none: two, four, eight, as far as there are GPUs
  std::vector<std::string> operations;
  std::vector<std::string> ways;  // name|settings of [tuning.collectives], ';' between: more contenders
  uint64_t least = 256;
  uint64_t most = uint64_t{512} << 20;
  int rounds = 9;
};

// Prints a table for each number of ranks. False: some number was wrong.
bool measure_collectives(const CollectivesOptions& options);

}  // namespace bench::gpu

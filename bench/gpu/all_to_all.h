// Every GPU writes to every other at the same time.
#pragma once

#include <cstdint>
#include <string>

namespace bench::gpu {

struct AllToAll {
  std::string plugin;
  int blocks;
  int rounds;
  uint64_t page;
  uint64_t pages;  // from each GPU to each other
};

// Prints a table. False: some page was wrong.
bool run_all_to_all(const AllToAll& options);

}  // namespace bench::gpu

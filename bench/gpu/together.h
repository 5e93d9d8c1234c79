// Two communicators of ranks with a GPU each, and pages from each GPU to the next, at once.
#pragma once

#include <string>

namespace bench::gpu {

struct TogetherOptions {
  std::string plugin;              // libtowline_cuda.so
  std::string collectives_plugin;  // libtowline_collectives_gpu.so; empty: the one beside the library
  int rounds = 9;
};

// Prints what each gets alone and beside the others. False: something was wrong.
bool measure_together(const TogetherOptions& options);

}  // namespace bench::gpu

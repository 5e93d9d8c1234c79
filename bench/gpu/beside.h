#pragma once

#include <string>
#include <vector>

namespace bench::gpu {

struct BesideOptions {
  std::string plugin;
  std::string cublas;
  int size = 8192;
  double seconds = 1;
  bool routes = false;
  // Instead of those that the program has: "name|settings of [cuda], ';' between|product's SMs: a green context of so many, r: of
  // all but these, a: so many asked of cuBLAS|bytes per second that the agent may move, 0: any". The last two may be left out.
  std::vector<std::string> ways;
  std::vector<int> cases;  // their numbers; none: all
};

int measure_beside(const BesideOptions& options);

}  // namespace bench::gpu

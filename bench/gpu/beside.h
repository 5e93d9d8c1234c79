#pragma once

#include <string>

namespace bench::gpu {

struct BesideOptions {
  std::string plugin;
  std::string cublas;
  int size = 8192;
  double seconds = 1;
  bool routes = false;
};

int measure_beside(const BesideOptions& options);

}  // namespace bench::gpu

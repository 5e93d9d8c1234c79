// What programs that call NVIDIA's driver themselves need first.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>
#include <towline/towline.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace bench {

// Without a driver the process exits with 77, which ctest counts as a skip.
inline void* driver_library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    fmt::print(stderr, "no CUDA driver: {}\n", dlerror());
    std::exit(77);
  }
  return library;
}

// Ends the process if a call of the library failed.
inline void need(int32_t status, const char* what) {
  if (status == TOWLINE_OK) return;
  fmt::print(stderr, "{}: {}\n", what, towline_last_error());
  std::exit(1);
}

}  // namespace bench

// The things that tcpx has never met: `towline info` lists them, and docs/tcpx.md has the same table (a test compares them).
#pragma once

#include <span>

namespace towline::tcpx {

struct NeverMet {
  const char* part;
  const char* what;  // it has not met, and what it was seen with instead
};

inline constexpr NeverMet kNeverMet[] = {
    {"devmem", "a real NIC; seen with Linux 7.3 and a NIC made for tests, in a guest"},
    {"zcrx", "a real NIC; seen with Linux 7.3 and a NIC made for tests, in a guest"},
    {"devmem-legacy", "Google's kernel, daemon and NIC; seen with a daemon made for tests"},
    {"sends from GPU memory",
     "a real NIC, and a real GPU's dma-buf; seen with Linux 7.3 and a NIC made for tests, in a guest, on "
     "GPUs made of "
     "host memory"},
    {"pools on a GPU",
     "a real GPU's dma-buf; seen with a driver made for tests, and GPUs made of host memory"},
};

}  // namespace towline::tcpx

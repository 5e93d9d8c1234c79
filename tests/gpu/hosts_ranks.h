// Ranks of a test that count as being on different hosts.
#pragma once

#include <string>
#include <vector>

#include "gpu/collectives_suite.h"

namespace towline::gpu_test {

// Staging is small, so that operations take several chunks: 128 KiB in each half, and 32 KiB for messages. NCCL, where it is,
// would go before hops.
inline Ranks on_hosts(const std::vector<std::string>& hosts, uint64_t timeout_ns = 60'000'000'000) {
  return {static_cast<int>(hosts.size()),
          "tuning.collectives.gpu_staging_bytes = \"256KiB\"\ncollectives.on_gpu = \"gpu\"\n", timeout_ns,
          hosts};
}

}  // namespace towline::gpu_test

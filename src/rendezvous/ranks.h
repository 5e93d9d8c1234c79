// Which of how many ranks this process is, as the launcher says.
#pragma once

#include <string>
#include <string_view>

#include "base/config/config.h"

namespace towline::rendezvous {

struct RankAndSize {
  int rank = 0;
  int size = 0;
  std::string source;  // "RANK and WORLD_SIZE"
};

// Reads rank and size from the environment. `method`: as in towline_collective_environment. Throws
// Error(kNotFound).
RankAndSize rank_from_environment(const Config& config, std::string_view method);

}  // namespace towline::rendezvous

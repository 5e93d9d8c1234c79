// The part of one rank in a measurement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

struct Cell {
  std::string operation;
  uint64_t bytes = 0;  // of the larger side: the whole buffer, all parts together
};

struct Plan {
  std::vector<Cell> cells;
  std::vector<std::string> contenders;
  int rounds = 31;
  double sample_s = 0.001;  // one sample is as many calls as take about so long
  bool fresh = false;       // every rank writes its input before each call
};

// Measures every cell; rank 0 prints a line of JSON for each. The exit code.
int run_rank(const Plan& plan, const std::string& team_name, const std::string& folder, int rank, int ranks);

}  // namespace bench

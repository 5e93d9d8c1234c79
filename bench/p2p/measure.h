// Runs contenders side by side: every round runs each of them once on the same cell, in an order that moves
// on by one each round, so that drift of the machine hits all alike and ratios are taken within a round.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "contender.h"
#include "support/statistics.h"

namespace bench {

struct Settings {
  int rounds = 7;
  double batch_s = 0.02;  // a contender's share of a round: as many iterations as fit, at least one
  double quiet_s = 0;     // wait up to so long before each round for other programs to fall idle
};

struct CellResult {
  Cell cell;
  std::map<std::string, std::vector<double>> seconds;  // contender -> one run's seconds, by round
  std::map<std::string, std::string> failures;         // contender -> why it has no samples

  std::vector<double> gigabytes_per_s(const std::string& contender) const;
};

// Verifies every contender's bytes before measuring it; one that fails is left out with the reason. `setup`
// was called.
CellResult measure(const Cell& cell, std::size_t span, const Contenders& contenders,
                   const Settings& settings);

}  // namespace bench

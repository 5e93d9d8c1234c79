// Results as tables for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "measure.h"

namespace bench {

// One line: every contender's median GB/s.
std::string summary(const CellResult& result);

// GB/s of every contender: median, and with `spreads` [min max] too.
std::string bandwidth_table(const std::vector<CellResult>& results, const Contenders& contenders,
                            bool spreads);

// Each of Towline's contenders over the best of its limits and over the better of its peers, paired by round.
std::string ratio_table(const std::vector<CellResult>& results, const Contenders& contenders);

Json to_json(const std::vector<CellResult>& results, const Contenders& contenders);

}  // namespace bench

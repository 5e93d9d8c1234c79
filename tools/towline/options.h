// Options of every subcommand.
#pragma once

#include "terminal.h"

namespace tool {

struct CommonOptions {
  bool json = false;
  Terminal output{stdout, true};  // results
  Terminal errors{stderr, true};  // progress, and what went wrong
};

}  // namespace tool

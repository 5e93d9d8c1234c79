// The commands of the program.
#pragma once

#include <CLI/App.hpp>

#include "options.h"

namespace tool {

// Adds every command to `app`. Both must outlive its parsing.
void add_commands(CLI::App& app, CommonOptions& common);

}  // namespace tool

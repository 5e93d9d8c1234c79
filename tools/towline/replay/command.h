// The replay subcommand's options.
#pragma once

#include <CLI/App.hpp>

#include "options.h"

namespace tool::replay {

void add_replay_command(CLI::App& app, CommonOptions& common);

}  // namespace tool::replay

// towline info: usable backends, why others are not usable, and the machine's topology.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "options.h"

namespace tool {

void add_info_command(CLI::App& app, CommonOptions& common);

// An agent's info, for people.
[[nodiscard]] std::string render_info(const nlohmann::json& info, const Terminal& terminal);

}  // namespace tool

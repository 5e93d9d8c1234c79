// towline info: usable backends, why others are not usable, and the machine's topology.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "options.h"

namespace tool {

void add_info_command(CLI::App& app, CommonOptions& common);

// Of what is no backend, in the form of a backend's details.
[[nodiscard]] nlohmann::json never_met_beside_backends();

// An agent's info, for people.
[[nodiscard]] std::string render_info(const nlohmann::json& info, const Terminal& terminal);

}  // namespace tool

// towline config: the settings, what is in force, and from where.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "options.h"

namespace tool {

void add_config_command(CLI::App& app, CommonOptions& common);

// What towline_settings says; `text`: TOML over environment and file.
[[nodiscard]] nlohmann::json read_settings(const std::string& text = "");
// The settings of towline_settings whose names contain `filter`; with `all` also those without promise that are not set.
[[nodiscard]] nlohmann::json chosen_settings(const nlohmann::json& settings, const std::string& filter,
                                             bool all, bool set_only);
// As a table for people, with a line for each wrong value and unknown name.
[[nodiscard]] std::string render_config(const nlohmann::json& settings, const Terminal& terminal);

}  // namespace tool

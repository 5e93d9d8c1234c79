// towline metrics: what the agents of this host have moved, as a table, as JSON, or for Prometheus.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "options.h"

namespace tool {

void add_metrics_command(CLI::App& app, CommonOptions& common);

// The metrics as a table. With the metrics of `seconds` ago it shows current rates, else totals since the
// agents began.
[[nodiscard]] std::string render_metrics(const nlohmann::json& now, const nlohmann::json* before,
                                         double seconds, const Terminal& terminal);

}  // namespace tool

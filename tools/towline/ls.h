// `towline ls`: the regions of a peer, or the files and objects of a store.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "options.h"

namespace tool {

// Entries with "place" (for `towline cp`), "bytes" and, for a peer's regions, "kind", "access" and "layout" if it is
// known. Throws Failure or towline::Error.
[[nodiscard]] nlohmann::json list_place(const std::string& place);

void add_ls_command(CLI::App& app, CommonOptions& common);

}  // namespace tool

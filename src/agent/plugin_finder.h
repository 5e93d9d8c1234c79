// Plugins that are loaded by name when they are needed: directories, exporters.
#pragma once

#include <string>
#include <string_view>

#include <vector>

#include "base/config/config.h"
#include "base/plugin_table.h"

namespace towline {

// The plugins that a library's entry symbol offers: at least one. Throws Error(kUnsupported).
std::vector<const towline_plugin_v1_t*> offered_plugins(towline_plugin_v1_fn entry);

// Loads libtowline_<name>.so from the folders of the setting plugin_path, then from those beside this library
// (towline/plugins, plugins). It stays loaded. Throws Error: kNotFound naming every place, kUnsupported.
const std::vector<const towline_plugin_v1_t*>& load_plugins(const Config& config, std::string_view name);

// The file of the bundled plugin of this name; empty: it was not built.
std::string bundled_plugin(const Config& config, std::string_view name);

// The first of the plugins in that library which has the table; throws Error as above, and kUnsupported with
// the reason where it is not usable here.
towline_plugin_v1_t find_plugin(const Config& config, std::string_view name, const char* table);
template <class Table>
Table load_table(const Config& config, std::string_view name, const char* id) {
  return plugin_table<Table>(find_plugin(config, name, id), id);
}

}  // namespace towline

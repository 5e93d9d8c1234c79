// Plugins that are loaded when they are asked for by name: directories, exporters.
#pragma once

#include <string>
#include <string_view>

#include "base/config.h"
#include "base/error.h"
#include "towline/plugin/v1.h"

namespace towline {

// Loads libtowline_<name>.so from the folders of the setting plugin_path, then from those beside this library
// (towline/plugins, plugins). It stays loaded. Throws Error: kNotFound naming every place, kUnsupported.
const towline_plugin_v1_t& load_plugin(const Config& config, std::string_view name);

// Where the backend of this name lies that comes with Towline as a plugin; empty: it was left out.
std::string bundled_plugin(const Config& config, std::string_view name);

// A plugin's table; throws Error(kUnsupported) when it has none of that id.
template <class Table>
const Table& plugin_table(const towline_plugin_v1_t& plugin, const char* id) {
  const auto* table = static_cast<const Table*>(plugin.query_table(id, 1));
  if (table == nullptr) {
    fail(Status::kUnsupported, "the plugin {} has no table '{}' of version 1", plugin.name, id);
  }
  if (table->struct_size < sizeof(Table)) {
    fail(Status::kUnsupported, "table '{}' of the plugin {} has {} bytes, {} are needed", id, plugin.name,
         table->struct_size, sizeof(Table));
  }
  return *table;
}

}  // namespace towline

// Tables of the plugin ABI in this library's version: slots that an older plugin lacks are null, slots that
// only a newer one has are skipped (towline/plugin/sized.h).
#pragma once

#include <string_view>

#include "base/error.h"
#include "towline/plugin/landing.h"
#include "towline/plugin/v1.h"

namespace towline {

template <class Table>
inline constexpr size_t kTableMinimum = 0;
template <>
inline constexpr size_t kTableMinimum<towline_memory_table_v1> = TOWLINE_MEMORY_TABLE_V1_MINIMUM;
template <>
inline constexpr size_t kTableMinimum<towline_connection_table_v1> = TOWLINE_CONNECTION_TABLE_V1_MINIMUM;
template <>
inline constexpr size_t kTableMinimum<towline_data_table_v1> = TOWLINE_DATA_TABLE_V1_MINIMUM;
template <>
inline constexpr size_t kTableMinimum<towline_storage_table_v1> = TOWLINE_STORAGE_TABLE_V1_MINIMUM;
template <>
inline constexpr size_t kTableMinimum<towline_directory_table_v1> = TOWLINE_DIRECTORY_TABLE_V1_MINIMUM;
template <>
inline constexpr size_t kTableMinimum<towline_landing_table_v1> = TOWLINE_LANDING_TABLE_V1_MINIMUM;
template <>
inline constexpr size_t kTableMinimum<towline_exporter_table_v1> = TOWLINE_EXPORTER_TABLE_V1_MINIMUM;

// Throws Error(kUnsupported) where it is smaller than its first release was; `what` names it for people.
template <class Table>
Table take_table(const Table* table, size_t minimum, std::string_view what) {
  Table taken;
  if (towline_take(&taken, sizeof taken, minimum, table) == 0) {
    fail(
        Status::kUnsupported,
        "{} has {} bytes, and had {} in its first release already: its struct_size is wrong, or it was built "
        "against headers that were never released",
        what, table->struct_size, minimum);
  }
  return taken;
}

// The same for what an entry symbol returned; `what`: "the plugin etcd".
inline towline_plugin_v1_t take_plugin(const towline_plugin_v1_t* plugin, std::string_view what) {
  if (plugin->struct_size >= TOWLINE_BYTES_THROUGH(towline_plugin_v1_t, major) &&
      plugin->major != TOWLINE_PLUGIN_MAJOR) {
    fail(Status::kUnsupported, "{} speaks plugin ABI {}, this library {}", what, plugin->major,
         TOWLINE_PLUGIN_MAJOR);
  }
  return take_table(plugin, TOWLINE_PLUGIN_V1_MINIMUM, fmt::format("the description of {}", what));
}

// The plugin's table of that id; throws Error(kUnsupported).
template <class Table>
Table plugin_table(const towline_plugin_v1_t& plugin, const char* id) {
  static_assert(kTableMinimum<Table> != 0);
  const auto* const table = static_cast<const Table*>(plugin.query_table(id, 1));
  if (table == nullptr) fail(Status::kUnsupported, "{} has no table '{}' of version 1", plugin.name, id);
  return take_table(table, kTableMinimum<Table>, fmt::format("table '{}' of {}", id, plugin.name));
}

}  // namespace towline

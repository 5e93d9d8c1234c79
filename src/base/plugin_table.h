// Tables of the plugin ABI in this library's version: slots that an older plugin lacks are null, slots that
// only a newer one has are skipped (towline/plugin/sized.h).
#pragma once

#include <array>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "towline/plugin/landing.h"
#include "towline/plugin/v1.h"

namespace towline {

// What every release of a table has had: its bytes, and its slots, all of them pointers that no backend leaves null.
template <class Table>
struct FirstRelease;
template <>
struct FirstRelease<towline_memory_table_v1> {
  static constexpr size_t kMinimum = TOWLINE_MEMORY_TABLE_V1_MINIMUM;
  static constexpr std::array kSlots = {"add", "remove", "import", "unimport"};
};
template <>
struct FirstRelease<towline_connection_table_v1> {
  static constexpr size_t kMinimum = TOWLINE_CONNECTION_TABLE_V1_MINIMUM;
  static constexpr std::array kSlots = {"address", "probe", "connect", "disconnect", "describe"};
};
template <>
struct FirstRelease<towline_data_table_v1> {
  static constexpr size_t kMinimum = TOWLINE_DATA_TABLE_V1_MINIMUM;
  static constexpr std::array kSlots = {"prepare", "unprepare", "submit", "send",
                                        "cancel",  "progress",  "arm",    "disarm"};
};
template <>
struct FirstRelease<towline_storage_table_v1> {
  static constexpr size_t kMinimum = TOWLINE_STORAGE_TABLE_V1_MINIMUM;
  static constexpr std::array kSlots = {"schemes", "open", "query", "commit", "close"};
};
template <>
struct FirstRelease<towline_directory_table_v1> {
  static constexpr size_t kMinimum = TOWLINE_DIRECTORY_TABLE_V1_MINIMUM;
  static constexpr std::array kSlots = {"open", "close", "submit", "cancel", "watch", "unwatch", "describe"};
};
template <>
struct FirstRelease<towline_landing_table_v1> {
  static constexpr size_t kMinimum = TOWLINE_LANDING_TABLE_V1_MINIMUM;
  static constexpr std::array kSlots = {"check", "open", "close", "ready", "begin", "poll"};
};
template <>
struct FirstRelease<towline_exporter_table_v1> {
  static constexpr size_t kMinimum = TOWLINE_EXPORTER_TABLE_V1_MINIMUM;
  static constexpr std::array kSlots = {"open", "close"};
};

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

// The same for a table of slots, none of which may be null.
template <class Table>
Table take_slots(const Table* table, std::string_view what) {
  using First = FirstRelease<Table>;
  static_assert(First::kMinimum == sizeof(size_t) + First::kSlots.size() * sizeof(void*));
  const Table taken = take_table(table, First::kMinimum, what);
  for (size_t i = 0; i < First::kSlots.size(); ++i) {
    const void* slot = nullptr;
    std::memcpy(&slot, reinterpret_cast<const char*>(&taken) + sizeof(size_t) + i * sizeof slot, sizeof slot);
    if (slot == nullptr)
      fail(Status::kUnsupported, "the slot '{}' of {} is null; only slots after the table's minimum may be",
           First::kSlots[i], what);
  }
  return taken;
}

// The same for what an entry symbol returned; `what`: "the plugin etcd". Texts that it lacks are empty.
inline towline_plugin_v1_t take_plugin(const towline_plugin_v1_t* plugin, std::string_view what) {
  if (plugin->struct_size >= TOWLINE_BYTES_THROUGH(towline_plugin_v1_t, major) &&
      plugin->major != TOWLINE_PLUGIN_MAJOR) {
    fail(Status::kUnsupported, "{} speaks plugin ABI {}, this library {}", what, plugin->major,
         TOWLINE_PLUGIN_MAJOR);
  }
  auto taken = take_table(plugin, TOWLINE_PLUGIN_V1_MINIMUM, fmt::format("the description of {}", what));
  const char* const lacks = taken.name == nullptr || *taken.name == '\0' ? "name"
                            : taken.usable == nullptr                    ? "function 'usable'"
                            : taken.query_table == nullptr               ? "function 'query_table'"
                                                                         : nullptr;
  if (lacks != nullptr) fail(Status::kUnsupported, "{} has no {}, and every plugin needs one", what, lacks);
  for (const char** const text : {&taken.version, &taken.description, &taken.fence_reason})
    if (*text == nullptr) *text = "";
  return taken;
}

// The plugin's table of that id; throws Error(kUnsupported).
template <class Table>
Table plugin_table(const towline_plugin_v1_t& plugin, const char* id) {
  const auto* const table = static_cast<const Table*>(plugin.query_table(id, 1));
  if (table == nullptr) fail(Status::kUnsupported, "{} has no table '{}' of version 1", plugin.name, id);
  return take_slots(table, fmt::format("table '{}' of {}", id, plugin.name));
}

}  // namespace towline

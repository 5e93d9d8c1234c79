// The schemes under which the command line names storage, and which plugin of Towline serves each.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace tool {

struct StorageScheme {
  std::string_view name;
  std::string_view backend;
  std::string_view plugin;  // that has the backend; empty: it is built in
  bool objects;             // SCHEME://BUCKET/KEY; else files, SCHEME:/PATH
};

[[nodiscard]] std::span<const StorageScheme> storage_schemes();

// What stands before the first colon of a place if it can be a scheme, known or not; else empty.
[[nodiscard]] std::string_view scheme_text(std::string_view place);
// Null: a path, or a scheme that is not in the table.
[[nodiscard]] const StorageScheme* scheme_of(std::string_view place);

// The meaning of a storage failure's vendor code: an errno, or for objects the HTTP status.
[[nodiscard]] std::string vendor_code_text(int code);

// A line of configuration that loads what serves these places; empty: no plugin is needed.
[[nodiscard]] std::string plugins_for(std::initializer_list<std::string_view> places);

}  // namespace tool

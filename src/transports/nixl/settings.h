#pragma once

#include <cstdint>
#include <string>

#include "towline/plugin/backend.hpp"

namespace towline::nixl_net {

inline constexpr const char* kName = "nixl_net";

struct Settings {
  std::string library;     // the plugin's file
  std::string parameters;  // its engine's: "key=value,key=value"
  uint64_t blocks = 0;     // of one request at most

  // Throws plugin::Failure that names the setting.
  static Settings read(const plugin::Host& host);
};

}  // namespace towline::nixl_net

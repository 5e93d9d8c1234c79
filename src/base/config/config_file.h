// The TOML file as a flat list of dotted keys; used only by config.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace towline {

struct ConfigFileValue {
  std::string text;   // as it would be written in the environment; arrays joined by commas
  uint32_t line = 0;  // 1 is the first
};

// Throws Error(kInvalidArgument) naming file, line and what is wrong.
std::map<std::string, ConfigFileValue, std::less<>> parse_config_file(std::string_view text,
                                                                      std::string_view file_name);

}  // namespace towline

// The helpers that NIXL's C++ examples use.
#pragma once

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "nixl_types.h"

inline void nixl_exit_on_failure(nixl_status_t status, std::string_view message,
                                 std::string_view agent = {}) {
  if (status >= NIXL_SUCCESS) return;
  std::cerr << agent << ": " << message << ": " << nixlEnumStrings::statusStr(status) << std::endl;
  std::exit(EXIT_FAILURE);
}
inline void nixl_exit_on_failure(bool holds, std::string_view message, std::string_view agent = {}) {
  if (holds) return;
  std::cerr << agent << ": " << message << std::endl;
  std::exit(EXIT_FAILURE);
}

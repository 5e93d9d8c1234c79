// The part of Abseil that NIXL's exporter `prometheus` uses.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

namespace absl {

using string_view = std::string_view;

// Spaces around the number are allowed.
inline bool SimpleAtod(std::string_view text, double* value) {
  const std::string copy(text);
  char* end = nullptr;
  *value = std::strtod(copy.c_str(), &end);
  return end != copy.c_str() &&
         copy.find_first_not_of(" \t", static_cast<size_t>(end - copy.c_str())) == copy.npos;
}

}  // namespace absl

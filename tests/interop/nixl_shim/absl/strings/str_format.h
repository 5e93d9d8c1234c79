// The part of Abseil that test_transfer.cpp uses.
#pragma once

#include <cstdio>
#include <string>

namespace absl {
inline std::string StrFormat(const char* format, size_t number) {
  const std::string text = format;
  const size_t at = text.find("%d");
  return at == std::string::npos ? text : text.substr(0, at) + std::to_string(number) + text.substr(at + 2);
}
}  // namespace absl

// The part of Abseil that NIXL's exporter `prometheus` uses.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace absl {

inline std::vector<std::string_view> StrSplit(std::string_view text, char delimiter) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(delimiter, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace absl

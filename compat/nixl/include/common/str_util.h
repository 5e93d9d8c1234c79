// Source-compatible with NIXL's header of this name, without Abseil: words between delimiters.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nixl::str {

// Without the spaces around them; empty ones are left out.
[[nodiscard]] inline std::vector<std::string> splitStripped(std::string_view text, char delimiter = ',') {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(delimiter, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const size_t first = word.find_first_not_of(kSpaces);
    if (first != std::string_view::npos)
      words.emplace_back(word.substr(first, word.find_last_not_of(kSpaces) - first + 1));
    at = end + 1;
  }
  return words;
}
[[nodiscard]] inline std::set<std::string> splitStrippedSet(std::string_view text, char delimiter = ',') {
  const std::vector<std::string> words = splitStripped(text, delimiter);
  return {words.begin(), words.end()};
}

}  // namespace nixl::str

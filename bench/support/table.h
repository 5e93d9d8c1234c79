// Tables that read well in a terminal and in Markdown alike.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace bench {

using Rows = std::vector<std::vector<std::string>>;  // the first is the header; all have the same length

inline std::string render(const Rows& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 3);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) text += fmt::format("| {:<{}} ", rows[r][i], widths[i]);
    text += "|\n";
    if (r != 0) continue;
    for (std::size_t width : widths) text += fmt::format("|{:-<{}}", "", width + 2);
    text += "|\n";
  }
  return text;
}

}  // namespace bench

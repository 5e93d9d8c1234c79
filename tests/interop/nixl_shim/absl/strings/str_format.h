// The part of Abseil that NIXL's tests and its plugin POSIX use. Widths and precisions are not looked at.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace absl {

inline void format_to(std::ostream& out, std::string_view format) { out << format; }

template <class First, class... Rest>
void format_to(std::ostream& out, std::string_view format, const First& first, const Rest&... rest) {
  const size_t at = format.find('%');
  if (at == std::string_view::npos) return format_to(out, format);
  out << format.substr(0, at);
  if (format.substr(at, 2) == "%%") {
    out << '%';
    return format_to(out, format.substr(at + 2), first, rest...);
  }
  const size_t kind = format.find_first_of("diuxXsfgepc", at);
  if (kind == std::string_view::npos) return;
  out << first;
  format_to(out, format.substr(kind + 1), rest...);
}

template <class... Values>
std::string StrFormat(std::string_view format, const Values&... values) {
  std::ostringstream out;
  format_to(out, format, values...);
  return out.str();
}

}  // namespace absl

#include "units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "failure.h"

namespace tool {
namespace {

struct Number {
  double value;
  std::string_view unit;
};

Number split_number(std::string_view text, const char* what) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value) || value < 0) {
    throw Failure{fmt::format("'{}' is not {}", text, what)};
  }
  return {value, text.substr(static_cast<size_t>(end - text.data()))};
}

// Three significant digits, trailing zeros kept only where they say something.
std::string three_digits(double value) {
  if (value >= 99.95 || value == std::floor(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{:.{}f}", value, value >= 9.995 ? 1 : 2);
}

}  // namespace

uint64_t parse_size(std::string_view text) {
  constexpr const char* kWhat = "a size such as 4096, 64KiB or 2GiB";
  const auto [value, unit] = split_number(text, kWhat);
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    const size_t power = std::string_view{"KMGT"}.find(static_cast<char>(std::toupper(unit[0])));
    const std::string_view rest = unit.substr(1);
    if (power == std::string_view::npos || (rest != "" && rest != "iB" && rest != "i" && rest != "B")) {
      throw Failure{fmt::format("'{}' is not {}", text, kWhat)};
    }
    scale = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = value * scale;
  if (bytes >= 0x1p63) throw Failure{fmt::format("'{}' is too large a size", text)};
  return static_cast<uint64_t>(std::llround(bytes));
}

std::vector<uint64_t> parse_sizes(std::string_view text) {
  std::vector<uint64_t> sizes;
  while (true) {
    const size_t comma = text.find(',');
    sizes.push_back(parse_size(text.substr(0, comma)));
    if (comma == std::string_view::npos) return sizes;
    text.remove_prefix(comma + 1);
  }
}

std::chrono::nanoseconds parse_duration(std::string_view text) {
  constexpr const char* kWhat = "a duration such as 500ms, 2s or 1m";
  const auto [value, unit] = split_number(text, kWhat);
  double seconds = value;
  if (unit == "ns") {
    seconds *= 1e-9;
  } else if (unit == "us") {
    seconds *= 1e-6;
  } else if (unit == "ms") {
    seconds *= 1e-3;
  } else if (unit == "m" || unit == "min") {
    seconds *= 60;
  } else if (!unit.empty() && unit != "s") {
    throw Failure{fmt::format("'{}' is not {}", text, kWhat)};
  }
  if (seconds > 1e9) throw Failure{fmt::format("'{}' is too long a duration", text)};
  return std::chrono::nanoseconds{std::llround(seconds * 1e9)};
}

double parse_factor(std::string_view text) {
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && at == text.data() + text.size();
  return whole && std::isfinite(value) ? value : -1;
}

std::string refuse_unless_whole(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc{} && at == end) return {};
  return fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX);
}

std::string format_size(double bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return three_digits(bytes) + " " + kUnits[unit];
}

std::string format_duration(double seconds) {
  if (seconds < 999.5e-9) return three_digits(std::round(seconds * 1e10) / 10) + " ns";
  if (seconds < 999.5e-6) return three_digits(seconds * 1e6) + " us";
  if (seconds < 999.5e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds) + " s";
}

std::string format_rate(double bytes_per_s) { return fmt::format("{:.2f} GB/s", bytes_per_s / 1e9); }

std::string format_count(uint64_t count) {
  std::string text = fmt::format("{}", count);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

}  // namespace tool

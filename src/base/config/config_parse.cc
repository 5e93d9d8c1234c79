// Sizes and durations as people write them.
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/config/config.h"

namespace towline {
namespace {

using Unit = std::pair<std::string_view, uint64_t>;

constexpr std::array<Unit, 14> kByteUnits = {{{"", 1},
                                              {"B", 1},
                                              {"KiB", 1ULL << 10},
                                              {"MiB", 1ULL << 20},
                                              {"GiB", 1ULL << 30},
                                              {"TiB", 1ULL << 40},
                                              {"K", 1ULL << 10},
                                              {"M", 1ULL << 20},
                                              {"G", 1ULL << 30},
                                              {"T", 1ULL << 40},
                                              {"KB", 1'000},
                                              {"MB", 1'000'000},
                                              {"GB", 1'000'000'000},
                                              {"TB", 1'000'000'000'000}}};

constexpr std::array<Unit, 7> kDurationUnits = {{{"ns", 1},
                                                 {"us", kMicrosecondNs},
                                                 {"ms", kMillisecondNs},
                                                 {"s", kSecondNs},
                                                 {"min", 60 * kSecondNs},
                                                 {"h", 3600 * kSecondNs},
                                                 {"d", 24 * 3600 * kSecondNs}}};

// "<number><spaces><unit>" with one of the units. Whole numbers stay exact; others are rounded.
template <std::size_t kCount>
std::optional<uint64_t> parse_quantity(std::string_view text,
                                       const std::array<Unit, kCount>& units) noexcept {
  text = trimmed(text);
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, digits);
  const std::string_view unit = digits == std::string_view::npos ? "" : trimmed(text.substr(digits));
  for (const auto& [name, factor] : units) {
    if (unit != name) continue;
    const char* end = number.data() + number.size();
    uint64_t whole = 0;
    if (const auto [at, error] = std::from_chars(number.data(), end, whole);
        error == std::errc() && at == end) {
      uint64_t product = 0;
      return __builtin_mul_overflow(whole, factor, &product) ? std::nullopt
                                                             : std::optional<uint64_t>(product);
    }
    double fraction = 0;
    const auto [at, error] = std::from_chars(number.data(), end, fraction, std::chars_format::fixed);
    if (error != std::errc() || at != end) return std::nullopt;
    const double product = std::nearbyint(fraction * static_cast<double>(factor));
    return product >= 0x1p63 ? std::nullopt : std::optional<uint64_t>(static_cast<uint64_t>(product));
  }
  return std::nullopt;
}

}  // namespace

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> items;
  for (std::string_view rest = trimmed(text); !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = trimmed(rest.substr(0, comma));
    if (!item.empty()) items.emplace_back(item);
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return items;
}

std::optional<uint64_t> parse_bytes(std::string_view text) noexcept {
  return parse_quantity(text, kByteUnits);
}

std::optional<uint64_t> parse_duration_ns(std::string_view text) noexcept {
  if (trimmed(text) == "infinite") return kNoDeadline;
  if (trimmed(text) == "0") return 0;
  return parse_quantity(text, kDurationUnits);
}

}  // namespace towline

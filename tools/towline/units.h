// Sizes, times and rates as people write and read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tool {

// "4096", "4KiB", "4K" (both 1024), "4KB" (1000), up to T. Throws Failure with the wrong text.
[[nodiscard]] uint64_t parse_size(std::string_view text);
// "4KiB,64KiB,1MiB".
[[nodiscard]] std::vector<uint64_t> parse_sizes(std::string_view text);
// "500ms", "2s", "1.5s", "1m", "20us"; a bare number is seconds.
[[nodiscard]] std::chrono::nanoseconds parse_duration(std::string_view text);

// Three digits and a binary unit: "64 KiB", "1.25 GiB".
[[nodiscard]] std::string format_size(double bytes);
// Three digits: "850 ns", "12.3 us", "1.20 s".
[[nodiscard]] std::string format_duration(double seconds);
// Decimal gigabytes: "12.3 GB/s".
[[nodiscard]] std::string format_rate(double bytes_per_s);
[[nodiscard]] inline double seconds_between(std::chrono::steady_clock::time_point begin,
                                            std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return seconds_between(begin, std::chrono::steady_clock::now());
}

// A count with separators: "182,790".
[[nodiscard]] std::string format_count(uint64_t count);

// A plain number; negative if it is not a number or not finite.
[[nodiscard]] double parse_factor(std::string_view text);
// Checks that a 64-bit option is digits only; otherwise "-1" would mean 2^64 - 1. Returns "" or the error.
[[nodiscard]] std::string refuse_unless_whole(const std::string& text);

}  // namespace tool

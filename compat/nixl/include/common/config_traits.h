// Source-compatible with NIXL's header of this name: values from text. Each conversion throws
// std::runtime_error for text that it can't read.
#pragma once

#include <strings.h>

#include <charconv>
#include <chrono>
#include <concepts>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "exception.h"

namespace nixl::config {

template <class T, class = void>
struct configTraits;

template <>
struct configTraits<bool> {
  [[nodiscard]] static bool convert(const std::string& text) {
    for (const char* yes : {"y", "yes", "on", "1", "true", "enable"})
      if (strcasecmp(yes, text.c_str()) == 0) return true;
    for (const char* no : {"n", "no", "off", "0", "false", "disable"})
      if (strcasecmp(no, text.c_str()) == 0) return false;
    throwRuntimeError("'", text, "' should be yes or no");
  }
};

template <>
struct configTraits<std::string> {
  [[nodiscard]] static std::string convert(const std::string& text) { return text; }
};

template <>
struct configTraits<std::filesystem::path> {
  [[nodiscard]] static std::filesystem::path convert(const std::string& text) { return text; }
};

// Decimal; unsigned ones also in hexadecimal after 0x.
template <class T>
requires(std::integral<T> && !std::same_as<T, bool>) struct configTraits<T> {
  [[nodiscard]] static T convert(const std::string& text) {
    const bool hex =
        std::unsigned_integral<T> && text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char* const end = text.data() + text.size();
    T value{};
    const auto [stopped, error] = std::from_chars(text.data() + (hex ? 2 : 0), end, value, hex ? 16 : 10);
    if (error == std::errc::result_out_of_range) throwRuntimeError("'", text, "' is out of range");
    if (error != std::errc{} || stopped != end) throwRuntimeError("'", text, "' should be a whole number");
    return value;
  }
};

template <class T>
requires std::floating_point<T>
struct configTraits<T> {
  [[nodiscard]] static T convert(const std::string& text) {
    const char* const end = text.data() + text.size();
    T value{};
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || stopped != end) throwRuntimeError("'", text, "' should be a number");
    return value;
  }
};

// A number of those units.
template <class Count, class Period>
struct configTraits<std::chrono::duration<Count, Period>> {
  [[nodiscard]] static std::chrono::duration<Count, Period> convert(const std::string& text) {
    return std::chrono::duration<Count, Period>{configTraits<Count>::convert(text)};
  }
};

template <class T>
struct configTraits<std::optional<T>> {
  [[nodiscard]] static std::optional<T> convert(const std::string& text) {
    return configTraits<T>::convert(text);
  }
};

// Values between commas.
template <class T>
struct configTraits<std::vector<T>> {
  [[nodiscard]] static std::vector<T> convert(const std::string& text) {
    std::vector<T> values;
    for (size_t at = 0; at < text.size();) {
      const size_t comma = text.find(',', at);
      const size_t end = comma == std::string::npos ? text.size() : comma;
      values.push_back(configTraits<T>::convert(text.substr(at, end - at)));
      at = end + 1;
    }
    return values;
  }
};

}  // namespace nixl::config

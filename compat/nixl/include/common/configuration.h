// Source-compatible with NIXL's header of this name: settings from the environment, else from NIXL's
// configuration file, as values.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include <nixl_types.h>
#include "config_traits.h"
#include "nixl_log.h"

namespace towline::nixl {
// The text of a setting; empty if neither the environment nor NIXL's configuration file has it. Throws
// std::runtime_error for a file that can't be read.
[[nodiscard]] TOWLINE_NIXL_API std::optional<std::string> configured(const std::string& name);
// The same from the environment alone. What is set but empty is set.
[[nodiscard]] TOWLINE_NIXL_API std::optional<std::string> in_environment(const std::string& name);
}  // namespace towline::nixl

namespace nixl::config {

namespace internal {  // which plugins use all the same

[[nodiscard]] inline std::optional<std::string> getenvOptional(const std::string& name) {
  return towline::nixl::in_environment(name);
}
[[nodiscard]] inline std::string getenvDefaulted(const std::string& name, const std::string& fallback) {
  return getenvOptional(name).value_or(fallback);
}

}  // namespace internal

// Traits<T>::convert() makes a value of a text. A text that it can't read throws std::runtime_error; it does not
// count as missing.
template <class T, template <class...> class Traits = configTraits>
[[nodiscard]] std::optional<T> getValueOptional(const std::string& name) {
  const std::optional<std::string> text = towline::nixl::configured(name);
  if (!text) return std::nullopt;
  return Traits<T>::convert(*text);
}
template <class T, template <class...> class Traits = configTraits>
[[nodiscard]] T getValueDefaulted(const std::string& name, const T& fallback) {
  return getValueOptional<T, Traits>(name).value_or(fallback);
}
template <class T, template <class...> class Traits = configTraits>
[[nodiscard]] T getValue(const std::string& name) {
  if (std::optional<T> value = getValueOptional<T, Traits>(name)) return *value;
  throwRuntimeError("the setting ", name, " is missing");
}
// NIXL_ERR_NOT_FOUND if it is missing, NIXL_ERR_MISMATCH if it can't be read.
template <class T, template <class...> class Traits = configTraits>
[[nodiscard]] nixl_status_t getValueWithStatus(T& result, const std::string& name) {
  try {
    std::optional<std::decay_t<T>> value = getValueOptional<std::decay_t<T>, Traits>(name);
    if (!value) return NIXL_ERR_NOT_FOUND;
    result = *value;
    return NIXL_SUCCESS;
  } catch (const std::exception& error) {
    NIXL_DEBUG << name << ": " << error.what();
    return NIXL_ERR_MISMATCH;
  }
}
[[nodiscard]] inline std::string getNonEmptyString(const std::string& name) {
  std::string text = getValue<std::string>(name);
  if (text.empty()) throwRuntimeError("the setting ", name, " is empty");
  return text;
}
[[nodiscard]] inline bool checkExistence(const std::string& name) {
  return towline::nixl::configured(name).has_value();
}

}  // namespace nixl::config

// Source-compatible with NIXL's header of this name: a backend's parameters as values.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include <nixl_types.h>
#include "config_traits.h"

namespace nixl {

// Empty if it was not given. Throws std::runtime_error that names the parameter for a bad value.
template <class T>
[[nodiscard]] std::optional<T> getBackendParamOptional(const nixl_b_params_t& params,
                                                       const std::string& key) {
  const auto found = params.find(key);
  if (found == params.end()) return std::nullopt;
  try {
    return config::configTraits<T>::convert(found->second);
  } catch (const std::exception& error) {
    throwRuntimeError("the parameter ", key, ": ", error.what());
  }
}
template <class T>
[[nodiscard]] std::optional<T> getBackendParamOptional(const nixl_b_params_t* params,
                                                       const std::string& key) {
  return params == nullptr ? std::nullopt : getBackendParamOptional<T>(*params, key);
}

template <class T>
[[nodiscard]] T getBackendParamDefaulted(const nixl_b_params_t& params, const std::string& key,
                                         const T fallback) {
  return getBackendParamOptional<T>(params, key).value_or(fallback);
}
template <class T>
[[nodiscard]] T getBackendParamDefaulted(const nixl_b_params_t* params, const std::string& key,
                                         const T fallback) {
  return getBackendParamOptional<T>(params, key).value_or(fallback);
}

}  // namespace nixl

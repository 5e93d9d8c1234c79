// The library of a plugin of NIXL's, and calls into it.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "log.h"

namespace towline::nixl {

// Of dlopen; null, and why, if it can't be loaded. Libraries that it needs are also looked for beside it.
[[nodiscard]] void* open_plugin_library(const std::string& path, std::string& why);

// Calls a plugin's function. Exceptions end here, since the caller is NIXL's interface, which does not throw.
template <class Result, class Function>
Result ask(const std::string& path, const char* what, Result otherwise, Function function) noexcept {
  try {
    return function();
  } catch (const std::exception& error) {
    fail(NIXL_ERR_BACKEND, "plugin {}: {} threw: {}", path, what, error.what());
  } catch (...) {
    fail(NIXL_ERR_BACKEND, "plugin {}: {} threw something that is no std::exception", path, what);
  }
  return otherwise;
}

}  // namespace towline::nixl

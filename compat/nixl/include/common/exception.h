// Source-compatible with NIXL's header of this name.
#pragma once

#include <sstream>
#include <stdexcept>

namespace nixl {

// Throws std::runtime_error with the parts as its text.
template <class... Parts>
[[noreturn]] void throwRuntimeError(Parts&&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

}  // namespace nixl

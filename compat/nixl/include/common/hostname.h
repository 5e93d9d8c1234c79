// Source-compatible with NIXL's header of this name.
#pragma once

#include <climits>
#include <optional>
#include <string>

#include <unistd.h>

namespace nixl {

[[nodiscard]] inline std::optional<std::string> getHostname() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return std::nullopt;
  return name;
}

}  // namespace nixl

// Libraries that a plugin of NIXL's interface needs. Those that the program it was built for has loaded already lie beside
// it, where the dynamic loader does not look. This file needs the standard library alone: Towline's own backends for
// such plugins (src/nixl_plugins) are built with it, too.
#pragma once

#include <string>

namespace towline::nixl_plugins {

inline constexpr int kMostCompanions = 32;  // of one plugin

// Loads the library that the dynamic loader's text about `plugin` says is missing, from beside the plugin, beside its
// folder, or a folder there with nixl in its name. It stays. False: it is not there, or nothing is said to be missing.
bool load_companion(const std::string& plugin, const std::string& loader_text);

// The message for the user: which library `plugin` needs and where it was looked for, or the loader's text as it is.
[[nodiscard]] std::string explain_missing(const std::string& plugin, const std::string& loader_text);

}  // namespace towline::nixl_plugins

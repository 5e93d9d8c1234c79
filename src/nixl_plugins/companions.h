// Libraries that a plugin of NIXL's interface comes with: the program that it was built for has loaded them already.
#pragma once

#include <string>

namespace towline::nixl_plugins {

// Loads the library that the dynamic loader's text about `plugin` says is missing, from beside the plugin, beside its
// folder, or a folder there with nixl in its name. It stays. False: it is not there, or nothing is said to be missing.
bool load_companion(const std::string& plugin, const std::string& loader_text);

}  // namespace towline::nixl_plugins

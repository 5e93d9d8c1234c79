// towline completions: a script for a shell that completes this program's subcommands and options.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace tool {

// `app`: the whole program's. Throws Failure for a shell other than bash, zsh and fish.
[[nodiscard]] std::string render_completions(const CLI::App& app, const std::string& shell);

void add_completions_command(CLI::App& app);

}  // namespace tool

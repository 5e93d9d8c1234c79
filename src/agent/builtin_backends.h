// The one table of built-in backends, and the only place where the agent names any.
#pragma once

#include <span>
#include <string>

#include "towline/plugin/v1.h"

namespace towline {

struct BuiltinBackend {
  const char* name;
  const towline_plugin_v1_t* (*plugin)();
  bool automatic;  // else only if the agent's backends or the setting `plugins` name it
};
std::span<const BuiltinBackend> builtin_backends() noexcept;

// The backends that come with Towline as plugins.
struct BundledBackend {
  const char* name;
  const char* plugin;  // that has it: libtowline_<plugin>.so
  const char* scheme;  // of the storage it serves; "": none
  bool automatic;  // loaded if its file exists; else only if `plugins` names its plugin, or `backends` itself
};
std::span<const BundledBackend> bundled_backends() noexcept;

// The same plugin behind the fault interceptor, set up by `faults` (framing/fault_options.h). Throws Error
// naming what is wrong with the text. The result stays valid until the process ends.
const towline_plugin_v1_t* wrap_with_faults(const towline_plugin_v1_t* plugin, const std::string& faults);

}  // namespace towline

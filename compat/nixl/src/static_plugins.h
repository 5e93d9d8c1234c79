// Plugins that are linked in, by TOWLINE_NIXL_STATIC_PLUGINS of the build.
#pragma once

#include <plugin_manager.h>

namespace towline::nixl {

// The build writes it.
void add_static_plugins(nixlPluginManager& manager);

}  // namespace towline::nixl

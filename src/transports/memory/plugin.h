// The memory transport as a built-in plugin.
#pragma once

#include "towline/plugin/v1.h"

// Lives for ever. Called by the agent's table of built-in backends.
const towline_plugin_v1_t* towline_memory_plugin();

// The tcp backend: framed transfers over TCP and Unix stream sockets, to any host.
#pragma once

#include "towline/plugin/v1.h"

extern "C" const towline_plugin_v1_t* towline_tcp_plugin();

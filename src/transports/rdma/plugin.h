// The backends over the fabric's rails, to any host: `rdma` over every RDMA port of this host, and those that users
// ask for by name, `ucx` and `libfabric`.
#pragma once

#include "towline/plugin/v1.h"

extern "C" const towline_plugin_v1_t* towline_rdma_plugin();
extern "C" const towline_plugin_v1_t* towline_ucx_plugin();
extern "C" const towline_plugin_v1_t* towline_libfabric_plugin();

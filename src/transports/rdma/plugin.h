// The rdma backend: RDMA over every rail that this agent has, to any host.
#pragma once

#include "towline/plugin/v1.h"

extern "C" const towline_plugin_v1_t* towline_rdma_plugin();

// The exports of libplugin_TOWLINE.so and libplugin_TCPX.so: TOWLINE_NIXL_NAME says which.
#include <cstdio>

#include "engine.h"

namespace {

nixlBackendEngine* create(const nixlBackendInitParams* init) {
  try {
    return new towline_plugin::Engine(init, towline_plugin::TOWLINE_NIXL_PARAMETERS());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "towline in nixl: the backend could not be made: %s\n", error.what());
    return nullptr;
  }
}

nixlBackendPlugin plugin = {NIXL_PLUGIN_API_VERSION,
                            create,
                            [](nixlBackendEngine* engine) { delete engine; },
                            [] { return TOWLINE_NIXL_NAME; },
                            [] { return TOWLINE_PLUGIN_VERSION; },
                            [] { return towline_plugin::TOWLINE_NIXL_PARAMETERS(); },
                            [] {
                              return nixl_mem_list_t{DRAM_SEG, VRAM_SEG};
                            }};

}  // namespace

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() { return &plugin; }
extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}

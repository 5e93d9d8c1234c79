// The entry of a plugin library that offers services (a directory, an exporter) and moves nothing itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "towline/plugin/v1.h"

namespace towline {

// For towline_plugin_v1(): as plugin number 0 of its library. The texts stay for ever.
inline towline_plugin_v1_t service_plugin(const char* name, const char* description,
                                          const void* (*query_table)(const char* id,
                                                                     uint32_t version)) noexcept {
  towline_plugin_v1_t plugin = {};
  plugin.struct_size = sizeof plugin;
  plugin.major = TOWLINE_PLUGIN_MAJOR;
  plugin.name = name;
  plugin.version = "0.1.0";
  plugin.description = description;
  plugin.fence_reason = "";
  plugin.usable = [](char*, size_t) -> int32_t { return TOWLINE_OK; };
  plugin.query_table = query_table;
  return plugin;
}

}  // namespace towline

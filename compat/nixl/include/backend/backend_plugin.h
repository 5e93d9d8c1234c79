// Source- and binary-compatible with NIXL's header of this name: what libplugin_<NAME>.so exports.
//
// A plugin is C++ across a shared library: it must be compiled with the standard library and the C++ standard
// (20) of the agent.
#pragma once

#include <exception>
#include <string>
#include <type_traits>

#include "backend_engine.h"

#define NIXL_PLUGIN_API_VERSION 1

// Its engines are made by a function, not by a constructor.
class nixlUcxEngine;

class nixlBackendPlugin {
 public:
  int api_version;
  // Null if it can't be made.
  nixlBackendEngine* (*create_engine)(const nixlBackendInitParams* init_params);
  void (*destroy_engine)(nixlBackendEngine* engine);
  const char* (*get_plugin_name)();
  const char* (*get_plugin_version)();
  nixl_b_params_t (*get_backend_options)();  // may be null
  nixl_mem_list_t (*get_backend_mems)();     // may be null
};

#define NIXL_PLUGIN_EXPORT __attribute__((visibility("default")))

// The functions of a plugin whose engines are of one class.
template <class EngineType>
class nixlBackendPluginCreator {
 public:
  // Valid for the life of the process; a second call returns the first one's.
  static nixlBackendPlugin* create(int api_version, const char* name, const char* version,
                                   const nixl_b_params_t& params, const nixl_mem_list_t& mem_list) {
    static const std::string its_name = name;
    static const std::string its_version = version;
    static const nixl_b_params_t its_params = params;
    static const nixl_mem_list_t its_mems = mem_list;
    static nixlBackendPlugin plugin = {api_version,
                                       make,
                                       [](nixlBackendEngine* engine) { delete engine; },
                                       [] { return its_name.c_str(); },
                                       [] { return its_version.c_str(); },
                                       [] { return its_params; },
                                       [] { return its_mems; }};
    return &plugin;
  }

 private:
  [[nodiscard]] static nixlBackendEngine* make(const nixlBackendInitParams* init_params) {
    try {
      if constexpr (std::is_same_v<EngineType, nixlUcxEngine>) {
        return EngineType::create(*init_params).release();
      } else {
        return new EngineType(init_params);
      }
    } catch (const std::exception& error) {
      NIXL_ERROR << "the engine could not be made: " << error.what();
      return nullptr;
    }
  }
};

// A plugin that is linked in: createStatic<NAME>Plugin.
using nixlStaticPluginCreatorFunc = nixlBackendPlugin* (*)();

extern "C" {
NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init();
NIXL_PLUGIN_EXPORT void nixl_plugin_fini();
}

// Source- and binary-compatible with NIXL's header of this name: what libtelemetry_exporter_<NAME>.so exports.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <common/nixl_log.h>
#include "telemetry_exporter.h"

enum class nixl_telemetry_plugin_api_version : unsigned int { V1 = 1, V2 = 2 };

// Null if it can't be made.
using exporter_creator_fn_t =
    std::unique_ptr<nixlTelemetryExporter> (*)(const nixlTelemetryExporterInitParams& init_params);

class nixlTelemetryPlugin {
 public:
  nixlTelemetryPlugin(nixl_telemetry_plugin_api_version version, std::string_view name,
                      std::string_view its_version, exporter_creator_fn_t create) noexcept
      : api_version(version), create_exporter(create), name_(name), version_(its_version) {}

  [[nodiscard]] const std::string& getName() const noexcept { return name_; }
  [[nodiscard]] const std::string& getVersion() const noexcept { return version_; }

  nixl_telemetry_plugin_api_version api_version;
  exporter_creator_fn_t create_exporter;

 private:
  std::string name_;
  std::string version_;
};

#define NIXL_TELEMETRY_PLUGIN_EXPORT __attribute__((visibility("default")))

// The plugin whose exporters are of one class.
template <class ExporterType>
class nixlTelemetryPluginCreator {
 public:
  // Valid for the life of the process; a second call returns the first one's.
  static nixlTelemetryPlugin* create(nixl_telemetry_plugin_api_version api_version, std::string_view name,
                                     std::string_view version) {
    static nixlTelemetryPlugin plugin(api_version, name, version, make);
    return &plugin;
  }

 private:
  [[nodiscard]] static std::unique_ptr<nixlTelemetryExporter> make(
      const nixlTelemetryExporterInitParams& init_params) {
    try {
      return std::make_unique<ExporterType>(init_params);
    } catch (const nixlTelemetryBindFailed&) {
      throw;
    } catch (const std::exception& error) {
      NIXL_ERROR << "the exporter could not be made: " << error.what();
      return nullptr;
    }
  }
};

using nixlTelemetryStaticPluginCreatorFunc = nixlTelemetryPlugin* (*)();

extern "C" {
NIXL_TELEMETRY_PLUGIN_EXPORT nixlTelemetryPlugin* nixl_telemetry_plugin_init();
NIXL_TELEMETRY_PLUGIN_EXPORT void nixl_telemetry_plugin_fini();
}

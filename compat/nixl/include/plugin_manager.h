// Source-compatible with NIXL's header of this name, as far as backends and exporters of telemetry go: finds, loads and
// unloads libplugin_<NAME>.so and libtelemetry_exporter_<NAME>.so.
//
// Looked for in NIXL_PLUGIN_DIR, else in the folder `plugins` beside the library or module that holds this
// agent. Any thread may call anything.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend_plugin.h"
#include "telemetry/telemetry_plugin.h"

// A loaded plugin. While it exists the plugin stays loaded. A plugin's functions that throw count as failed.
class TOWLINE_NIXL_API nixlBackendPluginHandle {
 public:
  // `library` is of dlopen; null for a static plugin.
  nixlBackendPluginHandle(void* library, nixlBackendPlugin* plugin, std::string path);
  ~nixlBackendPluginHandle();
  nixlBackendPluginHandle(const nixlBackendPluginHandle&) = delete;
  nixlBackendPluginHandle& operator=(const nixlBackendPluginHandle&) = delete;

  // Null if it can't be made; towline::nixl::last_error then says why if the plugin did.
  nixlBackendEngine* createEngine(const nixlBackendInitParams* init_params) const;
  void destroyEngine(nixlBackendEngine* engine) const;
  const char* getName() const;     // "unknown" if the plugin does not say
  const char* getVersion() const;  // the same
  nixl_b_params_t getBackendOptions() const;
  nixl_mem_list_t getBackendMems() const;
  const std::string& path() const noexcept { return path_; }  // "" for a static plugin

 private:
  void* library_;
  nixlBackendPlugin* plugin_;
  std::string path_;
};

// The same for a plugin with an exporter of telemetry.
class TOWLINE_NIXL_API nixlTelemetryPluginHandle {
 public:
  nixlTelemetryPluginHandle(void* library, nixlTelemetryPlugin* plugin, std::string path);
  ~nixlTelemetryPluginHandle();
  nixlTelemetryPluginHandle(const nixlTelemetryPluginHandle&) = delete;
  nixlTelemetryPluginHandle& operator=(const nixlTelemetryPluginHandle&) = delete;

  // Null if it can't be made; towline::nixl::last_error then says why if the plugin did. Throws nixlTelemetryBindFailed.
  // The exporter must end before this handle.
  std::unique_ptr<nixlTelemetryExporter> createExporter(
      const nixlTelemetryExporterInitParams& init_params) const;
  const char* getName() const { return plugin_->getName().c_str(); }
  const char* getVersion() const { return plugin_->getVersion().c_str(); }
  const std::string& path() const noexcept { return path_; }

 private:
  void* library_;
  nixlTelemetryPlugin* plugin_;
  std::string path_;
};

class TOWLINE_NIXL_API nixlPluginManager {
 public:
  static nixlPluginManager& getInstance();
  nixlPluginManager(const nixlPluginManager&) = delete;
  nixlPluginManager& operator=(const nixlPluginManager&) = delete;

  // Its plugins go before those of folders added earlier.
  void addPluginDirectory(const std::string& directory);
  // A file of lines NAME=path.
  void discoverPluginsFromList(const std::string& filename);
  // Makes a plugin that is linked in known; false if the name is taken or the plugin can't be used.
  bool registerStaticPlugin(const std::string& name, nixlStaticPluginCreatorFunc creator);

  // Loads it unless it is loaded. Null, with towline::nixl::last_error set, if no usable one is found.
  std::shared_ptr<const nixlBackendPluginHandle> loadBackendPlugin(const nixl_backend_t& name);
  // Null if it is not loaded.
  std::shared_ptr<const nixlBackendPluginHandle> getBackendPlugin(const nixl_backend_t& name);
  // It ends when its last engine does. Static plugins stay.
  void unloadBackendPlugin(const nixl_backend_t& name);
  std::vector<nixl_backend_t> getLoadedBackendPluginNames();
  // Loaded, and those that are only known by their file's name.
  std::vector<nixl_backend_t> getAvailBackendPluginNames();
  // True if a file or a static plugin of this name is known.
  bool knows(const nixl_backend_t& name);

  // The same for exporters of telemetry. Those that Towline has itself (docs: Telemetry) are no plugins.
  std::shared_ptr<const nixlTelemetryPluginHandle> loadTelemetryPlugin(const nixl_telemetry_plugin_t& name);
  std::shared_ptr<const nixlTelemetryPluginHandle> getTelemetryPlugin(const nixl_telemetry_plugin_t& name);
  void unloadTelemetryPlugin(const nixl_telemetry_plugin_t& name);
  std::vector<nixl_telemetry_plugin_t> getLoadedTelemetryPluginNames();

  // For an error: that the file of this name is not there, and the folders in which it was looked for.
  std::string where_looked(const nixl_backend_t& name);

 private:
  nixlPluginManager();
  [[nodiscard]] std::string not_found(std::string_view prefix, const std::string& name) const;
  // Where a file of this name would lie, in the order of the folders.
  [[nodiscard]] std::vector<std::string> paths_of(std::string_view prefix, const std::string& name) const;
  void discover_configured();
  void discover(const std::filesystem::path& directory);
  std::shared_ptr<const nixlBackendPluginHandle> open(const std::string& name, const std::string& path,
                                                      std::string& why);

  std::mutex mutex_;
  std::map<nixl_backend_t, std::shared_ptr<const nixlBackendPluginHandle>> loaded_;
  std::map<nixl_telemetry_plugin_t, std::shared_ptr<const nixlTelemetryPluginHandle>> exporters_;
  std::set<nixl_backend_t> static_;
  std::map<nixl_backend_t, std::string> listed_;  // by a file of names
  std::set<nixl_backend_t> found_;                // in the directories
  std::vector<std::string> directories_;          // the last one added first
  std::string configured_;                        // the last value of NIXL_PLUGIN_DIR
};

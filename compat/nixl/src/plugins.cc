// nixlPluginManager: finds, loads and unloads plugins.
#include <plugin_manager.h>

#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include <towline_nixl.h>
#include "log.h"
#include "plugin_library.h"
#include "settings.h"
#include "static_plugins.h"

namespace fs = std::filesystem;
namespace own = towline::nixl;

namespace {

constexpr std::string_view kPrefix = "libplugin_";
constexpr std::string_view kExporterPrefix = "libtelemetry_exporter_";
constexpr std::string_view kSuffix = ".so";

using own::ask;

void info(const std::string& text) { own::log(own::LogLevel::kInfo, text); }
void warn(const std::string& text) { own::log(own::LogLevel::kWarning, text); }

std::string folder_of_this_library() {
  Dl_info found = {};
  if (dladdr(reinterpret_cast<void*>(&folder_of_this_library), &found) == 0 || found.dli_fname == nullptr)
    return {};
  return (fs::path(found.dli_fname).parent_path() / "plugins").string();
}

std::string trimmed(std::string text) {
  text.erase(0, text.find_first_not_of(" \t\r"));
  text.erase(text.find_last_not_of(" \t\r") + 1);
  return text;
}

// A library, and what its `function` gives, if that is of the version which this agent takes. Else null, and why.
template <class Plugin, class Version>
std::pair<void*, Plugin*> open_as(const std::string& path, const char* function, const char* kind,
                                  Version version, std::string& why) {
  void* const library = own::open_plugin_library(path, why);
  if (library == nullptr) return {};
  using Init = Plugin* (*)();
  const auto init = reinterpret_cast<Init>(dlsym(library, function));
  Plugin* plugin = nullptr;
  if (init == nullptr) {
    why = fmt::format("{} has no function {}", path, function);
  } else {
    plugin = ask<Plugin*>(path, function, nullptr, [&] { return init(); });
    if (plugin == nullptr) why = fmt::format("{}: {} failed", path, function);
  }
  if (plugin != nullptr && plugin->api_version != version) {
    why = fmt::format("{} is of {} version {}, and this agent takes version {}", path, kind,
                      static_cast<int64_t>(plugin->api_version), static_cast<int64_t>(version));
    plugin = nullptr;
  }
  if (plugin == nullptr) {
    dlclose(library);
    return {};
  }
  return {library, plugin};
}

std::shared_ptr<const nixlTelemetryPluginHandle> open_exporter(const std::string& path, std::string& why) {
  const auto [library, plugin] = open_as<nixlTelemetryPlugin>(
      path, "nixl_telemetry_plugin_init", "telemetry plugin", nixl_telemetry_plugin_api_version::V2, why);
  if (plugin == nullptr) return nullptr;
  return std::make_shared<const nixlTelemetryPluginHandle>(library, plugin, path);
}

}  // namespace

// ---- A loaded plugin

nixlBackendPluginHandle::nixlBackendPluginHandle(void* library, nixlBackendPlugin* plugin, std::string path)
    : library_(library), plugin_(plugin), path_(std::move(path)) {}

nixlBackendPluginHandle::~nixlBackendPluginHandle() {
  if (library_ == nullptr) return;
  using Fini = void (*)();
  if (const auto fini = reinterpret_cast<Fini>(dlsym(library_, "nixl_plugin_fini"))) {
    ask(path_, "nixl_plugin_fini", 0, [&] {
      fini();
      return 0;
    });
  }
  dlclose(library_);
}

nixlBackendEngine* nixlBackendPluginHandle::createEngine(const nixlBackendInitParams* init_params) const {
  if (plugin_->create_engine == nullptr) return nullptr;
  return ask<nixlBackendEngine*>(path_, "create_engine", nullptr,
                                 [&] { return plugin_->create_engine(init_params); });
}

void nixlBackendPluginHandle::destroyEngine(nixlBackendEngine* engine) const {
  if (plugin_->destroy_engine == nullptr || engine == nullptr) return;
  ask(path_, "destroy_engine", 0, [&] {
    plugin_->destroy_engine(engine);
    return 0;
  });
}

const char* nixlBackendPluginHandle::getName() const {
  constexpr const char* kUnknown = "unknown";
  if (plugin_->get_plugin_name == nullptr) return kUnknown;
  const char* name = ask(path_, "get_plugin_name", kUnknown, [&] { return plugin_->get_plugin_name(); });
  return name == nullptr ? kUnknown : name;
}

const char* nixlBackendPluginHandle::getVersion() const {
  constexpr const char* kUnknown = "unknown";
  if (plugin_->get_plugin_version == nullptr) return kUnknown;
  const char* version =
      ask(path_, "get_plugin_version", kUnknown, [&] { return plugin_->get_plugin_version(); });
  return version == nullptr ? kUnknown : version;
}

nixl_b_params_t nixlBackendPluginHandle::getBackendOptions() const {
  if (plugin_->get_backend_options == nullptr) return {};
  return ask(path_, "get_backend_options", nixl_b_params_t{}, [&] { return plugin_->get_backend_options(); });
}

nixl_mem_list_t nixlBackendPluginHandle::getBackendMems() const {
  if (plugin_->get_backend_mems == nullptr) return {};
  return ask(path_, "get_backend_mems", nixl_mem_list_t{}, [&] { return plugin_->get_backend_mems(); });
}

// ---- The manager

nixlPluginManager& nixlPluginManager::getInstance() {
  static nixlPluginManager manager;
  return manager;
}

nixlPluginManager::nixlPluginManager() {
  const std::string beside = folder_of_this_library();
  std::error_code ignored;
  if (fs::is_directory(beside, ignored)) {
    directories_.push_back(beside);
    discover(beside);
  }
  own::add_static_plugins(*this);
}

// The environment may have changed since the last call.
void nixlPluginManager::discover_configured() {
  const std::string configured = own::plugin_directory();
  if (configured == configured_) return;
  configured_ = configured;
  std::error_code error;
  if (!fs::is_directory(configured, error)) {
    info("NIXL_PLUGIN_DIR is '" + configured + "', which is no folder");
    return;
  }
  std::erase(directories_, configured);
  directories_.insert(directories_.begin(), configured);
  discover(configured);
}

void nixlPluginManager::discover(const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string file = entry.path().filename().string();
    if (file.size() <= kPrefix.size() + kSuffix.size() || !file.starts_with(kPrefix) ||
        !file.ends_with(kSuffix))
      continue;
    found_.insert(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
  }
  if (error) warn("the plugin folder '" + directory.string() + "' can't be read: " + error.message());
}

void nixlPluginManager::addPluginDirectory(const std::string& directory) {
  std::error_code ignored;
  if (directory.empty() || !fs::is_directory(directory, ignored)) {
    own::fail(NIXL_ERR_NOT_FOUND, "addPluginDirectory: '{}' is no folder", directory);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (std::erase(directories_, directory) != 0)
    info("the plugin folder '" + directory + "' was known already");
  directories_.insert(directories_.begin(), directory);
  discover(directory);
}

void nixlPluginManager::discoverPluginsFromList(const std::string& filename) {
  std::ifstream file(filename);
  if (!file) {
    own::fail(NIXL_ERR_NOT_FOUND, "discoverPluginsFromList: '{}' can't be read", filename);
    return;
  }
  const std::lock_guard lock(mutex_);
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (line.starts_with('#') || equals == std::string::npos) continue;
    const std::string name = trimmed(line.substr(0, equals));
    if (!name.empty()) listed_[name] = trimmed(line.substr(equals + 1));
  }
}

bool nixlPluginManager::registerStaticPlugin(const std::string& name, nixlStaticPluginCreatorFunc creator) {
  nixlBackendPlugin* plugin =
      ask<nixlBackendPlugin*>("static " + name, "its creator", nullptr, [&] { return creator(); });
  if (plugin == nullptr || plugin->api_version != NIXL_PLUGIN_API_VERSION) return false;
  const std::lock_guard lock(mutex_);
  if (!static_.insert(name).second) return false;
  loaded_[name] = std::make_shared<const nixlBackendPluginHandle>(nullptr, plugin, "");
  return true;
}

std::shared_ptr<const nixlBackendPluginHandle> nixlPluginManager::open(const std::string& name,
                                                                       const std::string& path,
                                                                       std::string& why) {
  const auto [library, plugin] =
      open_as<nixlBackendPlugin>(path, "nixl_plugin_init", "plugin", NIXL_PLUGIN_API_VERSION, why);
  if (plugin == nullptr) return nullptr;
  info(fmt::format("plugin {} loaded from {}", name, path));
  return std::make_shared<const nixlBackendPluginHandle>(library, plugin, path);
}

std::shared_ptr<const nixlBackendPluginHandle> nixlPluginManager::loadBackendPlugin(
    const nixl_backend_t& name) {
  const std::lock_guard lock(mutex_);
  discover_configured();
  if (const auto known = loaded_.find(name); known != loaded_.end()) return known->second;
  std::vector<std::string> paths;
  if (const auto listed = listed_.find(name); listed != listed_.end() && !listed->second.empty())
    paths.push_back(listed->second);
  std::ranges::move(paths_of(kPrefix, name), std::back_inserter(paths));
  std::string why;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) continue;
    if (auto handle = open(name, path, why)) return loaded_[name] = std::move(handle);
  }
  own::quiet_text(NIXL_ERR_NOT_FOUND,
                  why.empty() ? not_found(kPrefix, name) : fmt::format("plugin '{}': {}", name, why));
  if (!why.empty()) info(own::last_error());
  return nullptr;
}

std::shared_ptr<const nixlBackendPluginHandle> nixlPluginManager::getBackendPlugin(
    const nixl_backend_t& name) {
  const std::lock_guard lock(mutex_);
  const auto known = loaded_.find(name);
  return known == loaded_.end() ? nullptr : known->second;
}

void nixlPluginManager::unloadBackendPlugin(const nixl_backend_t& name) {
  std::shared_ptr<const nixlBackendPluginHandle> last;  // its end may call the plugin: not under the lock
  const std::lock_guard lock(mutex_);
  if (static_.contains(name)) return;
  if (const auto known = loaded_.find(name); known != loaded_.end()) {
    last = std::move(known->second);
    loaded_.erase(known);
  }
}

std::vector<nixl_backend_t> nixlPluginManager::getLoadedBackendPluginNames() {
  const std::lock_guard lock(mutex_);
  std::vector<nixl_backend_t> names;
  for (const auto& [name, handle] : loaded_) names.push_back(name);
  return names;
}

std::vector<nixl_backend_t> nixlPluginManager::getAvailBackendPluginNames() {
  const std::lock_guard lock(mutex_);
  discover_configured();
  std::set<nixl_backend_t> names = found_;
  for (const auto& [name, handle] : loaded_) names.insert(name);
  for (const auto& [name, path] : listed_) names.insert(name);
  return {names.begin(), names.end()};
}

std::vector<std::string> nixlPluginManager::paths_of(std::string_view prefix, const std::string& name) const {
  // A name is part of a path here: one that leaves the folder is refused.
  if (name.find('/') != std::string::npos || name.find('\0') != std::string::npos) return {};
  std::vector<std::string> paths;
  for (const std::string& directory : directories_)
    paths.push_back(fmt::format("{}/{}{}{}", directory, prefix, name, kSuffix));
  return paths;
}

std::string nixlPluginManager::not_found(std::string_view prefix, const std::string& name) const {
  std::string folders;
  for (const std::string& directory : directories_) folders += (folders.empty() ? "" : ", ") + directory;
  return fmt::format("there is no {}{}{} in {} (NIXL_PLUGIN_DIR names a folder with plugins)", prefix, name,
                     kSuffix, folders.empty() ? "any folder" : folders);
}

std::string nixlPluginManager::where_looked(const nixl_backend_t& name) {
  const std::lock_guard lock(mutex_);
  discover_configured();
  return not_found(kPrefix, name);
}

bool nixlPluginManager::knows(const nixl_backend_t& name) {
  const std::lock_guard lock(mutex_);
  discover_configured();
  return found_.contains(name) || loaded_.contains(name) || listed_.contains(name);
}

// ---- Exporters of telemetry

nixlTelemetryPluginHandle::nixlTelemetryPluginHandle(void* library, nixlTelemetryPlugin* plugin,
                                                     std::string path)
    : library_(library), plugin_(plugin), path_(std::move(path)) {}

nixlTelemetryPluginHandle::~nixlTelemetryPluginHandle() {
  using Fini = void (*)();
  if (const auto fini = reinterpret_cast<Fini>(dlsym(library_, "nixl_telemetry_plugin_fini"))) {
    ask(path_, "nixl_telemetry_plugin_fini", 0, [&] {
      fini();
      return 0;
    });
  }
  dlclose(library_);
}

std::unique_ptr<nixlTelemetryExporter> nixlTelemetryPluginHandle::createExporter(
    const nixlTelemetryExporterInitParams& init_params) const {
  if (plugin_->create_exporter == nullptr) return nullptr;
  std::optional<nixlTelemetryBindFailed> taken;
  auto exporter = ask<std::unique_ptr<nixlTelemetryExporter>>(
      path_, "create_exporter", nullptr, [&]() -> std::unique_ptr<nixlTelemetryExporter> {
        try {
          return plugin_->create_exporter(init_params);
        } catch (const nixlTelemetryBindFailed& error) {
          taken = error;
          return nullptr;
        }
      });
  if (taken) throw nixlTelemetryBindFailed(*taken);
  return exporter;
}

std::shared_ptr<const nixlTelemetryPluginHandle> nixlPluginManager::loadTelemetryPlugin(
    const nixl_telemetry_plugin_t& name) {
  const std::lock_guard lock(mutex_);
  discover_configured();
  if (const auto known = exporters_.find(name); known != exporters_.end()) return known->second;
  std::string why;
  for (const std::string& path : paths_of(kExporterPrefix, name)) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) continue;
    if (auto handle = open_exporter(path, why)) {
      info(fmt::format("exporter {} loaded from {}", name, path));
      return exporters_[name] = std::move(handle);
    }
  }
  own::quiet_text(NIXL_ERR_NOT_FOUND, why.empty() ? not_found(kExporterPrefix, name)
                                                  : fmt::format("exporter '{}': {}", name, why));
  return nullptr;
}

std::shared_ptr<const nixlTelemetryPluginHandle> nixlPluginManager::getTelemetryPlugin(
    const nixl_telemetry_plugin_t& name) {
  const std::lock_guard lock(mutex_);
  const auto known = exporters_.find(name);
  return known == exporters_.end() ? nullptr : known->second;
}

void nixlPluginManager::unloadTelemetryPlugin(const nixl_telemetry_plugin_t& name) {
  std::shared_ptr<const nixlTelemetryPluginHandle> last;  // its end calls the plugin: not under the lock
  const std::lock_guard lock(mutex_);
  if (const auto known = exporters_.find(name); known != exporters_.end()) {
    last = std::move(known->second);
    exporters_.erase(known);
  }
}

std::vector<nixl_telemetry_plugin_t> nixlPluginManager::getLoadedTelemetryPluginNames() {
  const std::lock_guard lock(mutex_);
  std::vector<nixl_telemetry_plugin_t> names;
  for (const auto& [name, handle] : exporters_) names.push_back(name);
  return names;
}

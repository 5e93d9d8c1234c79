#include "agent/plugin_finder.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/os/dynamic_library.h"

namespace towline {
namespace {

std::string folder_of(const std::string& file) {
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

// The folder of this library's file, or of the program if it is linked in statically.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_plugins), &info) == 0 || info.dli_fname == nullptr)
    return ".";
  return folder_of(info.dli_fname);
}

std::vector<std::string> folders(const Config& config) {
  std::vector<std::string> result = config.get_list("plugin_path");
  const std::string own = own_folder();
  result.push_back(own + "/towline/plugins");
  result.push_back(own + "/plugins");
  return result;
}

bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

std::vector<const towline_plugin_v1_t*> offered_plugins(towline_plugin_v1_fn entry) {
  std::vector<const towline_plugin_v1_t*> offered;
  for (uint32_t number = 0; number < TOWLINE_MAX_PLUGINS; ++number) {
    const towline_plugin_v1_t* const plugin = entry(number);
    if (plugin == nullptr) break;
    if (std::find(offered.begin(), offered.end(), plugin) != offered.end()) break;  // it ignores the index
    offered.push_back(plugin);
  }
  if (offered.empty()) fail(Status::kUnsupported, "its entry symbol returned null");
  return offered;
}

const std::vector<const towline_plugin_v1_t*>& load_plugins(const Config& config, std::string_view name) {
  if (!is_plain(name)) fail(Status::kInvalidArgument, "'{}' is no name of a plugin", name);
  static std::mutex mutex;
  static std::map<std::string, std::vector<const towline_plugin_v1_t*>> loaded;  // by file
  const std::lock_guard lock(mutex);
  std::string looked;
  for (const std::string& folder : folders(config)) {
    const std::string file = fmt::format("{}/libtowline_{}.so", folder, name);
    if (const auto known = loaded.find(file); known != loaded.end()) return known->second;
    looked += (looked.empty() ? "" : ", ") + folder;
    if (access(file.c_str(), F_OK) != 0) continue;
    DynamicLibrary library(file);
    const auto entry = library.symbol<towline_plugin_v1_fn>(TOWLINE_PLUGIN_V1_SYMBOL);
    library.keep_loaded();  // its dependencies leave threads and exit handlers behind
    return loaded.emplace(file, offered_plugins(entry)).first->second;
  }
  fail(Status::kNotFound, "there is no plugin libtowline_{}.so in {} (the setting plugin_path adds folders)",
       name, looked);
}

towline_plugin_v1_t find_plugin(const Config& config, std::string_view name, const char* table) {
  const std::string what = fmt::format("the plugin {}", name);
  for (const towline_plugin_v1_t* const offered : load_plugins(config, name)) {
    const towline_plugin_v1_t plugin = take_plugin(offered, what);
    if (plugin.query_table(table, 1) == nullptr) continue;
    char reason[256] = "";
    if (plugin.usable(reason, sizeof reason) != TOWLINE_OK)
      fail(Status::kUnsupported, "{} is not usable here: {}", what, reason);
    return plugin;
  }
  fail(Status::kUnsupported, "{} has no table '{}' of version 1", what, table);
}

std::string bundled_plugin(const Config& config, std::string_view name) {
  for (const std::string& folder : folders(config)) {
    std::string file = fmt::format("{}/libtowline_{}.so", folder, name);
    if (access(file.c_str(), F_OK) == 0) return file;
  }
  return {};
}

}  // namespace towline

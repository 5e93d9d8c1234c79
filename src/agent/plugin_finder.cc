#include "agent/plugin_finder.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/dynamic_library.h"

namespace towline {
namespace {

std::string folder_of(const std::string& file) {
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

// Where the code of this library lies; a program's own file where it is linked in.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_plugin), &info) == 0 || info.dli_fname == nullptr)
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

const towline_plugin_v1_t& check(const towline_plugin_v1_t* plugin, const std::string& file) {
  if (plugin == nullptr) fail(Status::kUnsupported, "the plugin {}: its entry symbol returned null", file);
  if (plugin->major != TOWLINE_PLUGIN_MAJOR || plugin->struct_size < sizeof(towline_plugin_v1_t)) {
    fail(Status::kUnsupported, "the plugin {} speaks ABI {}, this library {}", file, plugin->major,
         TOWLINE_PLUGIN_MAJOR);
  }
  char reason[256] = "";
  if (plugin->usable(reason, sizeof reason) != TOWLINE_OK) {
    fail(Status::kUnsupported, "the plugin {} is not usable here: {}", file, reason);
  }
  return *plugin;
}

}  // namespace

const towline_plugin_v1_t& load_plugin(const Config& config, std::string_view name) {
  if (!is_plain(name)) fail(Status::kInvalidArgument, "'{}' is no name of a plugin", name);
  static std::mutex mutex;
  static std::map<std::string, const towline_plugin_v1_t*> loaded;  // by file
  const std::lock_guard lock(mutex);
  std::string looked;
  for (const std::string& folder : folders(config)) {
    const std::string file = fmt::format("{}/libtowline_{}.so", folder, name);
    if (const auto known = loaded.find(file); known != loaded.end()) return *known->second;
    looked += (looked.empty() ? "" : ", ") + folder;
    if (access(file.c_str(), F_OK) != 0) continue;
    DynamicLibrary library(file);
    const auto entry = library.symbol<towline_plugin_v1_fn>(TOWLINE_PLUGIN_V1_SYMBOL);
    library.keep_loaded();  // the libraries it brings along leave threads and exit handlers behind
    return *loaded.emplace(file, &check(entry(), file)).first->second;
  }
  fail(Status::kNotFound, "there is no plugin libtowline_{}.so in {} (the setting plugin_path adds folders)",
       name, looked);
}

std::string bundled_plugin(const Config& config, std::string_view name) {
  for (const std::string& folder : folders(config)) {
    std::string file = fmt::format("{}/libtowline_{}.so", folder, name);
    if (access(file.c_str(), F_OK) == 0) return file;
  }
  return {};
}

}  // namespace towline

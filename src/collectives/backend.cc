#include "collectives/backend.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "agent/plugin_finder.h"
#include "base/config/config.h"
#include "base/error.h"
#include "base/os/dynamic_library.h"
#include "base/plugin_table.h"

namespace towline::collectives {
namespace {

struct Registry {
  std::mutex mutex;
  // Whole, whatever the backend's release was; none goes or moves.
  std::map<std::string, towline_collective_table_v1_t> tables = {{"cpu", cpu_backend()},
                                                                 {"fake", fake_backend()}};
};

// Registered backends belong to the process, like libraries that the dynamic loader loads. Never destroyed: threads may
// use them while the process exits.
Registry& registry() {
  static auto& of_process = *new Registry;
  return of_process;
}

towline_collective_table_v1_t checked(const std::string& name, const towline_collective_table_v1_t* table) {
  if (name.empty() || table == nullptr) fail(Status::kInvalidArgument, "a backend needs a name and a table");
  auto taken = take_table(table, TOWLINE_COLLECTIVE_TABLE_V1_MINIMUM, "the table of backend " + name);
  if (taken.major != TOWLINE_COLLECTIVE_MAJOR) {
    fail(Status::kUnsupported, "backend {} has table version {}; this library takes version {}", name,
         taken.major, TOWLINE_COLLECTIVE_MAJOR);
  }
  return taken;
}

}  // namespace

const towline_collective_table_v1_t& find_backend(const std::string& name) {
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.tables.find(name); found != all.tables.end()) return found->second;
  }
  const std::string setting = "collectives.library." + name;
  if (const std::string path = Config::from_process().get_string(setting, ""); !path.empty()) {
    load_backend(name, path);
    return find_backend(name);
  }
  // Those that come with Towline.
  if (const std::string bundled = bundled_plugin(Config::from_process(), "collectives_" + name);
      !bundled.empty()) {
    static std::mutex loading;  // ranks may be threads
    const std::lock_guard one(loading);
    const std::vector<std::string> names = backend_names();
    if (std::find(names.begin(), names.end(), name) == names.end()) load_backend(name, bundled);
    return find_backend(name);
  }
  std::string known;
  for (const std::string& other : backend_names()) known += (known.empty() ? "" : ", ") + other;
  fail(Status::kNotFound,
       "no backend \"{}\": known are {}; register or load it, or name its library in the setting {}", name,
       known, setting);
}

std::vector<std::string> backend_names() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [name, table] : all.tables) names.push_back(name);
  return names;
}

void register_backend(const std::string& name, const towline_collective_table_v1_t* table) {
  const towline_collective_table_v1_t taken = checked(name, table);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (!all.tables.emplace(name, taken).second)
    fail(Status::kAlreadyExists, "there is a backend {} already", name);
}

void load_backend(const std::string& name, const std::string& path) {
  DynamicLibrary library(path);
  const auto entry = library.symbol<towline_collective_v1_fn>("towline_collective_v1");
  const towline_collective_table_v1_t* table = entry();
  if (table == nullptr) fail(Status::kUnsupported, "{} gives no table for backend {}", path, name);
  register_backend(name, table);
  library.keep_loaded();
}

}  // namespace towline::collectives

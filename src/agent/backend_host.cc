#include "agent/backend_host.h"

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "agent/builtin_backends.h"
#include "agent/plugin_finder.h"
#include "base/error.h"
#include "base/log.h"

namespace towline {

namespace {

thread_local std::string failure_text;

template <class Table>
const Table* query(const towline_plugin_v1_t& plugin, const char* id) {
  const auto* table = static_cast<const Table*>(plugin.query_table(id, 1));
  if (table == nullptr) fail(Status::kUnsupported, "it has no table '{}' of version 1", id);
  if (table->struct_size < sizeof(Table)) {
    fail(Status::kUnsupported, "its table '{}' has {} bytes, {} are needed", id, table->struct_size,
         sizeof(Table));
  }
  return table;
}

const towline_plugin_v1_t* wrapped(const Config& config, const towline_plugin_v1_t* plugin,
                                   const std::string& faults) {
  try {
    return wrap_with_faults(plugin, faults);
  } catch (const Error& error) {
    fail(error.code(), "{}: faults = \"{}\": {}", config.source("faults"), faults, error.message());
  }
}

// `text` is a backend's, which begins with the key of the setting.
[[noreturn]] void fail_setting(const Config& config, const std::string& backend, const std::string& text) {
  const std::string key = text.substr(0, text.find_first_of(" :="));
  fail(Status::kInvalidArgument, "{}: {}",
       config.find(key) ? config.source(key) : fmt::format("backend {}", backend), text);
}

}  // namespace

const char* step_name(Backend::Step step) noexcept {
  switch (step) {
    case Backend::Step::kDiscovered:
      return "discovered";
    case Backend::Step::kLoaded:
      return "loaded";
    case Backend::Step::kUsable:
      return "usable";
    case Backend::Step::kOpen:
      return "open";
    case Backend::Step::kClosed:
      return "closed";
  }
  return "unknown";
}

std::string take_failure_text() { return std::exchange(failure_text, {}); }
void set_failure_text(std::string text) { failure_text = std::move(text); }

BackendHost::BackendHost(Agent& agent, const std::vector<std::string>& wanted,
                         const std::vector<std::string>& plugin_files, const std::string& faults,
                         const towline_host_v1_t& services)
    : agent_(agent) {
  discover(plugin_files);
  for (const std::string& name : wanted) {
    if (find(name) != nullptr) continue;
    std::string known;
    for (const auto& backend : backends_) known += (known.empty() ? "" : ", ") + backend->name;
    fail(Status::kNotFound, "there is no backend '{}'; known here: {}", name, known);
  }
  if (!wanted.empty()) {
    std::erase_if(backends_, [&](const auto& backend) {
      if (std::find(wanted.begin(), wanted.end(), backend->name) != wanted.end()) return false;
      not_wanted_.push_back(backend->name);
      return true;
    });
    std::stable_sort(backends_.begin(), backends_.end(), [&](const auto& a, const auto& b) {
      return std::find(wanted.begin(), wanted.end(), a->name) <
             std::find(wanted.begin(), wanted.end(), b->name);
    });
  } else {
    std::stable_sort(backends_.begin(), backends_.end(), [](const auto& a, const auto& b) {
      return (a->plugin ? a->plugin->cost : UINT32_MAX) < (b->plugin ? b->plugin->cost : UINT32_MAX);
    });
  }
  try {
    open_all(faults, services);
  } catch (...) {
    close();
    throw;
  }
}

BackendHost::~BackendHost() { close(); }

void BackendHost::open_all(const std::string& faults, const towline_host_v1_t& services) {
  for (uint32_t i = 0; i < backends_.size(); ++i) {
    Backend& backend = *backends_[i];
    backend.index = i;
    backend.agent = &agent_;
    backend.host = services;
    backend.host.context = &backend;
    const bool stores = backend.plugin != nullptr && backend.has_trait(TOWLINE_TRAIT_STORAGE);
    if (!faults.empty() && backend.plugin != nullptr && !stores)
      backend.plugin = wrapped(agent_.config(), backend.plugin, faults);
    open(backend);
  }
}

void BackendHost::discover(const std::vector<std::string>& plugins) {
  for (const towline_plugin_v1_fn plugin : builtin_backends()) {
    backends_.push_back(std::make_unique<Backend>());
    load(*backends_.back(), plugin());
  }
  for (const std::string& file : plugins) {
    auto backend = std::make_unique<Backend>();
    backend->name = file;
    backend->file = file;
    try {
      if (file.find_first_of("/.") == std::string::npos) {
        load(*backend, &load_plugin(agent_.config(), file));
      } else {
        DynamicLibrary library(file);
        load(*backend, library.symbol<towline_plugin_v1_fn>(TOWLINE_PLUGIN_V1_SYMBOL)());
        if (find(backend->name) != nullptr) continue;  // the one named first serves
        libraries_.push_back(std::move(library));
      }
    } catch (const Error& error) {
      backend->reason = fmt::format("loading the plugin {} failed: {}", file, error.what());
      TOWLINE_LOG(kWarning, "{}", backend->reason);
    }
    backends_.push_back(std::move(backend));
  }
}

void BackendHost::load(Backend& backend, const towline_plugin_v1_t* plugin) noexcept {
  try {
    if (plugin == nullptr) fail(Status::kUnsupported, "its entry symbol returned null");
    if (plugin->major != TOWLINE_PLUGIN_MAJOR) {
      fail(Status::kUnsupported, "it speaks plugin ABI {}, this library {}", plugin->major,
           TOWLINE_PLUGIN_MAJOR);
    }
    if (plugin->struct_size < sizeof(towline_plugin_v1_t)) {
      fail(Status::kUnsupported, "its description has {} bytes, {} are needed", plugin->struct_size,
           sizeof(towline_plugin_v1_t));
    }
    backend.name = plugin->name;
    backend.plugin = plugin;
    backend.memory = query<towline_memory_table_v1>(*plugin, "memory");
    backend.connection = query<towline_connection_table_v1>(*plugin, "connection");
    backend.data = query<towline_data_table_v1>(*plugin, "data");
    backend.step = Backend::Step::kLoaded;
  } catch (const std::exception& error) {
    backend.reason = fmt::format("loading {} failed: {}", backend.file.empty() ? backend.name : backend.file,
                                 error.what());
    backend.plugin = nullptr;
    TOWLINE_LOG(kWarning, "{}", backend.reason);
  }
}

// Throws only for a setting that the backend refuses: without it the agent would silently lack the backend.
void BackendHost::open(Backend& backend) {
  if (backend.step != Backend::Step::kLoaded) return;
  int32_t status = TOWLINE_OK;
  std::string text;
  try {
    backend.memory = query<towline_memory_table_v1>(*backend.plugin, "memory");
    backend.connection = query<towline_connection_table_v1>(*backend.plugin, "connection");
    backend.data = query<towline_data_table_v1>(*backend.plugin, "data");
    if (backend.has_trait(TOWLINE_TRAIT_STORAGE))
      backend.storage = query<towline_storage_table_v1>(*backend.plugin, "storage");
    if (backend.plugin->query_table("storage_list", 1) != nullptr)
      backend.storage_list = query<towline_storage_list_table_v1>(*backend.plugin, "storage_list");
    if (backend.plugin->query_table("stream", 1) != nullptr)
      backend.stream = query<towline_stream_table_v1>(*backend.plugin, "stream");
    if (backend.plugin->query_table("reach", 1) != nullptr)
      backend.reach = query<towline_reach_table_v1>(*backend.plugin, "reach");
    if (backend.plugin->query_table("settle", 1) != nullptr)
      backend.settle = query<towline_settle_table_v1>(*backend.plugin, "settle");
    if (backend.plugin->query_table("connection_id", 1) != nullptr)
      backend.connection_id = query<towline_connection_id_table_v1>(*backend.plugin, "connection_id");
    if (backend.plugin->query_table("info", 1) != nullptr)
      backend.info = query<towline_info_table_v1>(*backend.plugin, "info");
    char reason[256] = "";
    if (backend.plugin->usable(reason, sizeof reason) != TOWLINE_OK) {
      backend.reason = fmt::format("not usable here: {}", reason);
      return;
    }
    backend.step = Backend::Step::kUsable;
    take_failure_text();
    status = backend.plugin->open(&backend.host, &backend.handle);
    if (status == TOWLINE_OK) {
      backend.step = Backend::Step::kOpen;
      return;
    }
    text = take_failure_text();
    backend.reason =
        fmt::format("opening it failed: {} ({})", text, status_name(static_cast<Status>(status)));
  } catch (const std::exception& error) {
    backend.reason = error.what();
  }
  if (status == TOWLINE_INVALID_ARGUMENT) fail_setting(agent_.config(), backend.name, text);
  TOWLINE_LOG(kWarning, "backend {}: {}", backend.name, backend.reason);
}

void BackendHost::close() noexcept {
  for (auto& backend : backends_) {
    if (!backend->open()) continue;
    backend->plugin->close(backend->handle);
    backend->handle = nullptr;
    backend->step = Backend::Step::kClosed;
  }
}

std::vector<std::string> BackendHost::names_not_open() const {
  std::vector<std::string> names = not_wanted_;
  for (const auto& backend : backends_)
    if (!backend->open()) names.push_back(backend->name);
  return names;
}

std::string BackendHost::names() const {
  std::string names;
  for (const auto& backend : backends_) names += (names.empty() ? "" : ", ") + backend->name;
  return names;
}

Backend* BackendHost::find(std::string_view name) const noexcept {
  for (const auto& backend : backends_) {
    if (backend->name == name) return backend.get();
  }
  return nullptr;
}

}  // namespace towline

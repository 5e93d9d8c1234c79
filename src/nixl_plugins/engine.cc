#include "nixl_plugins/engine.h"

#include <companions.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/os/dynamic_library.h"
#include "towline/plugin/backend.hpp"

// The only virtual function of the list that NIXL's header does not define.
template <class T>
int nixlDescList<T>::getIndex(const nixlBasicDesc& query) const {
  const auto found = std::ranges::find_if(descs, [&](const T& desc) {
    return desc.devId == query.devId && desc.addr == query.addr && desc.len == query.len;
  });
  return found == descs.end() ? static_cast<int>(NIXL_ERR_NOT_FOUND)
                              : static_cast<int>(found - descs.begin());
}
template class nixlDescList<nixlMetaDesc>;

namespace towline::nixl_plugins {

namespace {

nixl_b_params_t read_parameters(const std::string& backend, const std::string& text) {
  nixl_b_params_t parameters;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string entry = text.substr(at, end - at);
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw plugin::Failure(Status::kInvalidArgument,
                            fmt::format("{}.parameters: '{}' is not of the form key=value", backend, entry));
    parameters[entry.substr(0, equals)] = entry.substr(equals + 1);
    at = end + 1;
  }
  return parameters;
}

// Keeps an object for the life of the process. The list is never destroyed, so that none of it ends at exit.
void keep(std::shared_ptr<void> what) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(what));
}

// The plugin's entry. The library stays: such libraries have threads and handlers of their own.
auto entry_of(const std::string& backend, const std::string& file) {
  for (int tries = 0;; ++tries) {
    try {
      DynamicLibrary library(file);
      library.keep_loaded();
      return library.symbol<nixlBackendPlugin* (*)()>("nixl_plugin_init");
    } catch (const core::Error& error) {
      if (tries < kMostCompanions && load_companion(file, error.message())) continue;
      throw plugin::Failure(Status::kUnsupported, backend + ": " + explain_missing(file, error.message()));
    }
  }
}

}  // namespace

std::string find_plugin(const plugin::Host& host, const std::string& backend, const char* example) {
  const std::string key = backend + ".library";
  std::string given = host.config(key.c_str(), "");
  if (given.empty())
    throw plugin::Failure(
        Status::kInvalidArgument,
        fmt::format("{}: expected the path of a NIXL plugin, such as {}, or its name", key, example));
  if (given.find('/') != std::string::npos) return given;
  const std::string folder = host.config("nixl.plugin_dir", "");
  const std::string file = fmt::format("libplugin_{}.so", given);
  if (folder.empty())
    throw plugin::Failure(
        Status::kInvalidArgument,
        fmt::format("{} = \"{}\": to find {}, set nixl.plugin_dir to its folder", key, given, file));
  std::error_code ignored;
  if (!std::filesystem::exists(folder + "/" + file, ignored))
    throw plugin::Failure(
        Status::kUnsupported,
        fmt::format("{} = \"{}\": there is no {} in {} (nixl.plugin_dir)", key, given, file, folder));
  return folder + "/" + file;
}

void Engine::refuse(Status status, const std::string& why) const {
  throw plugin::Failure(status, fmt::format("{}: {}: {} ({}.library)", backend_, file_, why, backend_));
}

void Engine::abandon(std::shared_ptr<void> request) {
  keep(std::move(request));
  if (!std::exchange(abandoned_, true)) keep({engine_, [](void*) {}});
}

Engine::Engine(const EngineOptions& options)
    : file_(options.file),
      backend_(options.backend),
      parameters_(read_parameters(options.backend, options.parameters)) {
  make(options);
  try {
    ask_what_it_serves();
  } catch (...) {
    (void)ask([&] { return plugin_->destroy_engine(engine_), NIXL_SUCCESS; });
    throw;
  }
}

Engine::~Engine() {
  if (abandoned_) return;
  (void)ask([&] { return plugin_->destroy_engine(engine_), NIXL_SUCCESS; });
}

bool Engine::serves(nixl_mem_t kind) const noexcept {
  return std::ranges::find(kinds_, kind) != kinds_.end();
}

void Engine::make(const EngineOptions& options) {
  const auto init = entry_of(backend_, file_);
  std::string why = "nixl_plugin_init returned nothing";
  try {
    plugin_ = init();
  } catch (const std::exception& error) {
    why = std::string("nixl_plugin_init threw: ") + error.what();
  } catch (...) {
    why = "nixl_plugin_init threw something that is no std::exception";
  }
  if (plugin_ == nullptr) refuse(Status::kUnsupported, why);
  if (plugin_->api_version != NIXL_PLUGIN_API_VERSION)
    refuse(Status::kUnsupported, fmt::format("it is of plugin version {}, and this backend takes version {}",
                                             plugin_->api_version, NIXL_PLUGIN_API_VERSION));
  if (plugin_->create_engine == nullptr || plugin_->destroy_engine == nullptr)
    refuse(Status::kUnsupported, "it has no functions that make and destroy engines");
  nixlBackendInitParams params;
  params.localAgent = options.agent;
  params.customParams = &parameters_;
  params.enableProgTh = true;
  params.pthrDelay = options.progress_pause_us;
  params.syncMode = nixl_thread_sync_t::NIXL_THREAD_SYNC_STRICT;
  why = fmt::format(
      "it made no engine: its parameters ({}.parameters) may be wrong, or what it needs is not here",
      backend_);
  try {
    if (plugin_->get_plugin_name != nullptr) params.type = plugin_->get_plugin_name();
    type_ = params.type;
    engine_ = plugin_->create_engine(&params);
  } catch (const std::exception& error) {
    why = std::string("making an engine threw: ") + error.what();
  } catch (...) {
    why = "making an engine threw something that is no std::exception";
  }
  if (engine_ == nullptr) refuse(Status::kUnsupported, why);
}

void Engine::ask_what_it_serves() {
  const nixl_status_t asked = ask([&] {
    if (engine_->getInitErr()) return NIXL_ERR_BACKEND;
    remote_ = engine_->supportsRemote();
    local_ = engine_->supportsLocal();
    kinds_ = engine_->getSupportedMems();
    return NIXL_SUCCESS;
  });
  if (asked != NIXL_SUCCESS) refuse(Status::kUnsupported, "its engine reports that it failed to start");
}

}  // namespace towline::nixl_plugins

#include "storage/nixl/plugin_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "storing/calls/vendor_library.h"

namespace towline::nixl_files {

namespace {

constexpr const char* kAgent = "towline";

[[noreturn]] void refuse_plugin(Status status, const std::string& file, const std::string& why) {
  throw plugin::Failure(status, fmt::format("nixl: {}: {} (nixl.library)", file, why));
}

nixl_b_params_t read_parameters(const std::string& text) {
  nixl_b_params_t parameters;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string entry = text.substr(at, end - at);
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw plugin::Failure(Status::kInvalidArgument,
                            fmt::format("nixl.parameters: '{}' is not of the form key=value", entry));
    parameters[entry.substr(0, equals)] = entry.substr(equals + 1);
    at = end + 1;
  }
  return parameters;
}

// What must stay for the life of the process. Never destroyed, so that nothing of it ends at exit.
void keep(std::shared_ptr<void> what) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(what));
}

}  // namespace

void Engine::abandon(std::shared_ptr<void> request) {
  keep(std::move(request));
  if (!std::exchange(abandoned_, true)) keep({engine_, [](void*) {}});
}

Engine::Engine(const std::string& file, const std::string& parameters)
    : parameters_(read_parameters(parameters)) {
  make(file);
  try {
    start(file);
  } catch (...) {
    (void)ask([&] { return plugin_->destroy_engine(engine_), NIXL_SUCCESS; });
    throw;
  }
}

Engine::~Engine() {
  if (abandoned_) return;
  (void)ask([&] { return plugin_->destroy_engine(engine_), NIXL_SUCCESS; });
}

void Engine::make(const std::string& file) {
  const calls::VendorLibrary library("nixl", file);
  nixlBackendPlugin* (*init)() = nullptr;
  library.get(init, "nixl_plugin_init");
  std::string why = "nixl_plugin_init returned nothing";
  try {
    plugin_ = init();
  } catch (const std::exception& error) {
    why = std::string("nixl_plugin_init threw: ") + error.what();
  } catch (...) {
    why = "nixl_plugin_init threw something that is no std::exception";
  }
  if (plugin_ == nullptr) refuse_plugin(Status::kUnsupported, file, why);
  if (plugin_->api_version != NIXL_PLUGIN_API_VERSION)
    refuse_plugin(Status::kUnsupported, file,
                  fmt::format("it is of plugin version {}, and this backend takes version {}",
                              plugin_->api_version, NIXL_PLUGIN_API_VERSION));
  if (plugin_->create_engine == nullptr || plugin_->destroy_engine == nullptr)
    refuse_plugin(Status::kUnsupported, file, "it has no functions that make and destroy engines");
  nixlBackendInitParams params;
  params.localAgent = kAgent;
  params.customParams = &parameters_;
  params.enableProgTh = true;
  params.syncMode = nixl_thread_sync_t::NIXL_THREAD_SYNC_STRICT;
  why = "it made no engine: its parameters (nixl.parameters) may be wrong, or what it needs is not here";
  try {
    if (plugin_->get_plugin_name != nullptr) params.type = plugin_->get_plugin_name();
    engine_ = plugin_->create_engine(&params);
  } catch (const std::exception& error) {
    why = std::string("making an engine threw: ") + error.what();
  } catch (...) {
    why = "making an engine threw something that is no std::exception";
  }
  if (engine_ == nullptr) refuse_plugin(Status::kUnsupported, file, why);
}

void Engine::start(const std::string& file) {
  bool local = false;
  nixl_mem_list_t kinds;
  const nixl_status_t asked = ask([&] {
    if (engine_->getInitErr()) return NIXL_ERR_BACKEND;
    local = engine_->supportsLocal();
    kinds = engine_->getSupportedMems();
    return NIXL_SUCCESS;
  });
  if (asked != NIXL_SUCCESS)
    refuse_plugin(Status::kUnsupported, file, "its engine reports that it failed to start");
  const auto serves = [&](nixl_mem_t kind) { return std::ranges::find(kinds, kind) != kinds.end(); };
  if (!local || !serves(FILE_SEG) || !serves(DRAM_SEG))
    refuse_plugin(Status::kUnsupported, file, "its engine does not move files to and from host memory");
  const nixl_status_t connected = ask([&] { return engine_->connect(kAgent); });
  if (connected != NIXL_SUCCESS)
    refuse_plugin(
        Status::kIo, file,
        fmt::format("its engine failed to start: connect returned {}", static_cast<int>(connected)));
}

}  // namespace towline::nixl_files

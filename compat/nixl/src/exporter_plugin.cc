#include "exporter_plugin.h"

#include <stdexcept>
#include <utility>

#include <towline_nixl.h>
#include "log.h"

namespace towline::nixl {

std::unique_ptr<ExporterPlugin> ExporterPlugin::make(const std::string& agent, const Options& options) {
  auto plugin = nixlPluginManager::getInstance().loadTelemetryPlugin(options.name);
  if (plugin == nullptr) {
    throw std::runtime_error(
        fmt::format("NIXL_TELEMETRY_EXPORTER is '{}', which is neither BUFFER, prometheus, prometheus_mp nor "
                    "NOP, and no plugin: {}",
                    options.name, last_error()));
  }
  std::unique_ptr<nixlTelemetryExporter> exporter;
  try {
    quiet_text(NIXL_ERR_BACKEND, "the plugin does not say why");
    exporter = plugin->createExporter({agent, options.most_events});
  } catch (const nixlTelemetryBindFailed& error) {
    log(LogLevel::kWarning,
        fmt::format("this process's telemetry is not exported by '{}': {}", options.name, error.what()));
    return nullptr;
  }
  if (exporter == nullptr)
    throw std::runtime_error(
        fmt::format("the exporter '{}' of {} can't be made: {}", options.name, plugin->path(), last_error()));
  return std::unique_ptr<ExporterPlugin>(new ExporterPlugin(options, std::move(plugin), std::move(exporter)));
}

ExporterPlugin::ExporterPlugin(const Options& options,
                               std::shared_ptr<const nixlTelemetryPluginHandle> plugin,
                               std::unique_ptr<nixlTelemetryExporter> exporter)
    : options_(options), plugin_(std::move(plugin)), exporter_(std::move(exporter)) {
  waiting_.reserve(options_.most_events);
  taken_.reserve(options_.most_events);
  thread_ = std::thread([this] { run(); });
}

ExporterPlugin::~ExporterPlugin() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stops_.notify_one();
  thread_.join();
}

void ExporterPlugin::push(std::span<const nixlTelemetryEvent> events) noexcept {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() + events.size() > options_.most_events) {
    dropped_ += events.size();
    return;
  }
  waiting_.insert(waiting_.end(), events.begin(), events.end());
}

void ExporterPlugin::run() {
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex_);
      last = stops_.wait_for(lock, options_.interval, [&] { return stopping_; });
    }
    flush();
  }
}

void ExporterPlugin::flush() {
  uint64_t dropped = 0;
  taken_.clear();
  {
    const std::lock_guard lock(mutex_);
    std::swap(waiting_, taken_);
    dropped = std::exchange(dropped_, 0);
  }
  exporter_->withBatch([&] {
    for (const nixlTelemetryEvent& event : taken_) export_one(event);
    if (dropped != 0 && options_.tells_drops)
      export_one({nixl_telemetry_event_type_t::AGENT_TELEMETRY_EVENTS_DROPPED, dropped});
  });
}

void ExporterPlugin::export_one(const nixlTelemetryEvent& event) {
  std::string why;
  try {
    const nixl_status_t status = exporter_->exportEvent(event);
    if (status >= 0) return;
    why = "it answered " + nixlEnumStrings::statusStr(status);
  } catch (const std::exception& error) {
    why = std::string("it threw: ") + error.what();
  } catch (...) {
    why = "it threw something that is no std::exception";
  }
  if (std::exchange(has_failed_, true)) return;
  log(LogLevel::kWarning, fmt::format("the exporter '{}' loses events of telemetry: {}", options_.name, why));
}

}  // namespace towline::nixl

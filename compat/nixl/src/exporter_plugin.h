// An exporter of telemetry that is a plugin of NIXL's: libtelemetry_exporter_<NAME>.so.
//
// Events wait in a queue of bounded size, so that a slow exporter holds no transfer up. One thread gives them to the
// exporter, in batches. Events that find the queue full are counted and told to the exporter as such.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <plugin_manager.h>

namespace towline::nixl {

class ExporterPlugin {
 public:
  struct Options {
    std::string name;
    size_t most_events = 4096;
    std::chrono::milliseconds interval{100};
    bool tells_drops = true;
  };

  // Null if the exporter's address is taken: the log says so. Throws std::runtime_error for anything else.
  static std::unique_ptr<ExporterPlugin> make(const std::string& agent, const Options& options);
  // Gives the exporter what waits, then ends it. A forked child must not call this, since it has no such thread: it
  // leaves the object alone.
  ~ExporterPlugin();
  ExporterPlugin(const ExporterPlugin&) = delete;
  ExporterPlugin& operator=(const ExporterPlugin&) = delete;

  // All of them or, if they don't fit, none. Any thread.
  void push(std::span<const nixlTelemetryEvent> events) noexcept;

 private:
  ExporterPlugin(const Options& options, std::shared_ptr<const nixlTelemetryPluginHandle> plugin,
                 std::unique_ptr<nixlTelemetryExporter> exporter);
  void run();
  void flush();
  void export_one(const nixlTelemetryEvent& event);

  const Options options_;
  std::shared_ptr<const nixlTelemetryPluginHandle> plugin_;  // ends after its exporter
  std::unique_ptr<nixlTelemetryExporter> exporter_;
  bool has_failed_ = false;  // one line in the log is enough

  std::mutex mutex_;
  std::condition_variable stops_;
  bool stopping_ = false;
  std::vector<nixlTelemetryEvent> waiting_;
  uint64_t dropped_ = 0;
  std::vector<nixlTelemetryEvent> taken_;  // of the thread
  std::thread thread_;
};

}  // namespace towline::nixl

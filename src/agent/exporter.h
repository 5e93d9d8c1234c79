// Serves counters to monitoring systems, of one agent or of all on this host, through an exporter plugin.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "towline/plugin/v1.h"
#include "towline/telemetry.h"

namespace towline {

class Agent;

// "[...]": the counters of this agent, or with null of every agent on this host.
std::string counters_json(const Agent* agent);

class Exporter {
 public:
  // Serves until it ends. The agent, if any, outlives it. Throws Error.
  Exporter(const Config& config, const Agent* agent, const std::string& address);
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;
  // From now on the source's families are served too.
  void add(towline_metric_source_t source, void* context);
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  // For a child of fork, where its threads do not exist: ends nothing.
  void forget() noexcept { instance_ = nullptr; }

 private:
  static void collect(void* exporter, void (*take)(void* argument, const char* json, size_t bytes),
                      void* argument);
  [[nodiscard]] std::string collect_all() const;

  const Agent* const agent_;
  mutable std::mutex mutex_;
  std::vector<std::pair<towline_metric_source_t, void*>> sources_;
  towline_exporter_table_v1 table_ = {};
  towline_exporter_instance* instance_ = nullptr;
  std::string address_;
};

}  // namespace towline

#include "agent/exporter.h"

#include <nlohmann/json.hpp>

#include "agent/agent.h"
#include "agent/plugin_finder.h"
#include "base/error.h"
#include "base/log.h"
#include "telemetry/snapshot.h"

namespace towline {
namespace {

thread_local std::string exporter_failure;

void log_of_exporter(void*, int32_t level, const char* text) {
  if (level <= 0) {
    TOWLINE_LOG(kError, "exporter: {}", text);
  } else if (level == 1) {
    TOWLINE_LOG(kWarning, "exporter: {}", text);
  } else {
    TOWLINE_LOG(kInfo, "exporter: {}", text);
  }
}

void note_failure(void*, const char* text) { exporter_failure = text == nullptr ? "" : text; }

void collect(void* agent, void (*take)(void* argument, const char* json, size_t bytes), void* argument) {
  std::string json = "[]";
  try {
    json = counters_json(static_cast<const Agent*>(agent));
  } catch (const std::exception& error) {
    TOWLINE_LOG_EVERY(kWarning, 60 * kSecondNs, "exporter: reading counters: {}", error.what());
  }
  take(argument, json.data(), json.size());
}

}  // namespace

std::string counters_json(const Agent* agent) {
  nlohmann::json all = nlohmann::json::array();
  if (agent != nullptr) {
    all.push_back(with_histograms(read_snapshot(agent->metrics())));
  } else {
    for (const Snapshot& snapshot : find_processes()) all.push_back(with_histograms(snapshot));
  }
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Exporter::Exporter(const Config& config, const Agent* agent, const std::string& address) : agent_(agent) {
  table_ = load_table<towline_exporter_table_v1>(config, "prometheus", "exporter");
  const towline_exporter_host_v1 host = {sizeof host, const_cast<Agent*>(agent_), log_of_exporter,
                                         note_failure, collect};
  exporter_failure.clear();
  char bound[256] = "";
  const int32_t status = table_.open(&host, address.c_str(), bound, sizeof bound, &instance_);
  if (status != TOWLINE_OK) {
    fail(static_cast<Status>(status), "serving counters at '{}': {}", address,
         std::exchange(exporter_failure, {}));
  }
  address_ = bound;
}

Exporter::~Exporter() {
  if (instance_ != nullptr) table_.close(instance_);
}

}  // namespace towline

#include "agent/exporter.h"

#include <nlohmann/json.hpp>

#include "agent/agent.h"
#include "agent/plugin_finder.h"
#include "base/error.h"
#include "base/log.h"
#include "telemetry/snapshot.h"

namespace towline {
namespace {

void log_of_exporter(void*, int32_t level, const char* text) {
  if (level <= 0) {
    TOWLINE_LOG(kError, "exporter: {}", text);
  } else if (level == 1) {
    TOWLINE_LOG(kWarning, "exporter: {}", text);
  } else {
    TOWLINE_LOG(kInfo, "exporter: {}", text);
  }
}

void note_failure(void*, const char* text) { set_failure_text(text == nullptr ? "" : text); }

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

void Exporter::add(towline_metric_source_t source, void* context) {
  const std::lock_guard lock(mutex_);
  sources_.emplace_back(source, context);
}

// The agents' counters, and after them one object with the families of each source.
std::string Exporter::collect_all() const {
  std::string all = counters_json(agent_);
  const std::lock_guard lock(mutex_);
  for (const auto& [source, context] : sources_) {
    std::string families;
    source(
        context,
        [](void* to, const char* json, size_t bytes) { static_cast<std::string*>(to)->assign(json, bytes); },
        &families);
    // One bad entry would spoil the whole document.
    if (!nlohmann::json::accept(families)) continue;
    all.pop_back();
    all += (all.size() > 1 ? ",{\"families\":" : "{\"families\":") + families + "}]";
  }
  return all;
}

void Exporter::collect(void* exporter, void (*take)(void* argument, const char* json, size_t bytes),
                       void* argument) {
  std::string json = "[]";
  try {
    json = static_cast<const Exporter*>(exporter)->collect_all();
  } catch (const std::exception& error) {
    TOWLINE_LOG_EVERY(kWarning, 60 * kSecondNs, "exporter: reading counters: {}", error.what());
  }
  take(argument, json.data(), json.size());
}

Exporter::Exporter(const Config& config, const Agent* agent, const std::string& address) : agent_(agent) {
  table_ = load_table<towline_exporter_table_v1>(config, "prometheus", "exporter");
  const towline_exporter_host_v1 host = {sizeof host, this, log_of_exporter, note_failure, collect};
  take_failure_text();  // of something else on this thread
  char bound[256] = "";
  const int32_t status = table_.open(&host, address.c_str(), bound, sizeof bound, &instance_);
  if (status != TOWLINE_OK) {
    fail(static_cast<Status>(status), "serving counters at '{}': {}", address, take_failure_text());
  }
  address_ = bound;
}

Exporter::~Exporter() {
  if (instance_ != nullptr) table_.close(instance_);
}

}  // namespace towline

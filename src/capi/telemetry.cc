// C API: counters of a host, exporters.
#include "towline/telemetry.h"

#include <numeric>

#include "agent/exporter.h"
#include "capi/handles.h"
#include "telemetry/snapshot.h"

using namespace towline;  // NOLINT: C entry points

struct towline_exporter {
  std::shared_ptr<Agent> agent;  // null: of the host
  Exporter exporter;
};

extern "C" {

int32_t towline_host_metrics(char* json, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    const std::string text = counters_json(nullptr);
    return capi::give(text.data(), text.size(), true, json, capacity, needed);
  });
}

int32_t towline_metrics_visit(towline_agent_t* agent, towline_metric_visitor_t visitor, void* context) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    capi::need(reinterpret_cast<const void*>(visitor), "visitor");
    agent->agent->check_usable();
    for (const SeriesSnapshot& series : read_snapshot(agent->agent->metrics()).series) {
      const towline_metric_t metric = {
          sizeof metric,          series.peer.c_str(),
          series.backend.c_str(), series.direction == Direction::kTx ? "tx" : "rx",
          series.bytes,           series.transfers,
          series.blocks,          series.notices,
          series.served_bytes,    std::reduce(series.errors.begin(), series.errors.end()),
          series.measured,        series.latency_mean_ns,
          series.latency_p50_ns,  series.latency_p99_ns,
          series.latency_max_ns};
      if (const int32_t answer = visitor(context, &metric); answer != 0) return answer;
    }
    return int32_t{TOWLINE_OK};
  });
}

int32_t towline_exporter_start(towline_agent_t* agent, const char* address, towline_exporter_t** exporter) {
  return capi::guard(__func__, [&] {
    capi::need(address, "address");
    capi::need(exporter, "exporter");
    if (agent == nullptr) {
      *exporter = new towline_exporter{nullptr, Exporter(Config::from_process(), nullptr, address)};
      return Status::kOk;
    }
    agent->agent->check_usable();
    *exporter =
        new towline_exporter{agent->agent, Exporter(agent->agent->config(), agent->agent.get(), address)};
    return Status::kOk;
  });
}

int32_t towline_exporter_add(towline_exporter_t* exporter, towline_metric_source_t source, void* context) {
  return capi::guard(__func__, [&] {
    capi::need(exporter, "exporter");
    capi::need(reinterpret_cast<const void*>(source), "source");
    exporter->exporter.add(source, context);
    return Status::kOk;
  });
}

const char* towline_exporter_address(const towline_exporter_t* exporter) {
  return exporter == nullptr ? "" : exporter->exporter.address().c_str();
}

void towline_exporter_stop(towline_exporter_t* exporter) {
  if (exporter == nullptr) return;
  if (exporter->agent != nullptr && exporter->agent->usable() == Status::kForked) exporter->exporter.forget();
  delete exporter;
}

}  // extern "C"

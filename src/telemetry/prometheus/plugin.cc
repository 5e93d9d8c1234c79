// The plugin libtowline_prometheus.so: an HTTP server of prometheus-cpp's that asks the host when it is
// asked.
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/service_plugin.h"
#include "telemetry/prometheus/families.h"
#include "towline/plugin/v1.h"

namespace {

class Counters final : public prometheus::Collectable {
 public:
  explicit Counters(const towline_exporter_host_v1& host) : host_(host) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::string json;
    host_.collect(
        host_.context,
        [](void* to, const char* text, size_t bytes) { static_cast<std::string*>(to)->assign(text, bytes); },
        &json);
    return towline::telemetry::make_families(json);
  }

 private:
  const towline_exporter_host_v1 host_;
};

}  // namespace

struct towline_exporter_instance {
  explicit towline_exporter_instance(const towline_exporter_host_v1& host, const std::string& address)
      : counters(std::make_shared<Counters>(host)), exposer(address, kThreads) {
    exposer.RegisterCollectable(counters);
  }
  static constexpr size_t kThreads = 2;
  std::shared_ptr<Counters> counters;
  prometheus::Exposer exposer;
};

namespace {

int32_t open(const towline_exporter_host_v1* host, const char* address, char* bound, size_t capacity,
             towline_exporter_instance** exporter) {
  towline_exporter_host_v1 known;
  if (towline_take(&known, sizeof known, TOWLINE_EXPORTER_HOST_V1_MINIMUM, host) == 0)
    return TOWLINE_UNSUPPORTED;
  const std::string text = address;
  const size_t colon = text.rfind(':');
  // The server takes lists and options, too; one address is meant.
  if (colon == std::string::npos || colon == 0 || text.find_first_of(", ") != std::string::npos) {
    host->fail(host->context, "the address is host:port, such as 127.0.0.1:9400");
    return TOWLINE_INVALID_ARGUMENT;
  }
  try {
    auto made = std::make_unique<towline_exporter_instance>(known, text);
    const std::vector<int> ports = made->exposer.GetListeningPorts();
    const std::string where =
        text.substr(0, colon + 1) + (ports.empty() ? "0" : std::to_string(ports.front()));
    if (where.size() >= capacity) return TOWLINE_NO_SPACE;
    std::memcpy(bound, where.c_str(), where.size() + 1);
    *exporter = made.release();
    return TOWLINE_OK;
  } catch (const std::exception& error) {
    host->fail(host->context, error.what());
    return TOWLINE_ADDRESS_IN_USE;
  }
}

void close(towline_exporter_instance* exporter) { delete exporter; }

const void* query_table(const char* id, uint32_t version) {
  static const towline_exporter_table_v1 table = {sizeof(towline_exporter_table_v1), open, close};
  return version == 1 && std::strcmp(id, "exporter") == 0 ? &table : nullptr;
}

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_plugin_v1_t plugin =
      towline::service_plugin("prometheus", "counters at an HTTP endpoint for Prometheus", query_table);
  return number == 0 ? &plugin : nullptr;
}

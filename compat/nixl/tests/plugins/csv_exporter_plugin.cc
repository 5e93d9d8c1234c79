// An exporter of telemetry of NIXL's interface, for the tests: writes lines to the file TEST_EXPORTER_FILE. The variable
// TEST_EXPORTER_FAILS makes it fail: make, taken, null, export, throw.
#include <common/configuration.h>
#include <telemetry/telemetry_plugin.h>

#include <fstream>
#include <stdexcept>

#ifndef EXPORTER_API_VERSION
#define EXPORTER_API_VERSION V2
#endif

namespace {

class CsvExporter final : public nixlTelemetryExporter {
 public:
  explicit CsvExporter(const nixlTelemetryExporterInitParams& init)
      : nixlTelemetryExporter(init),
        fails_(nixl::config::getValueDefaulted<std::string>("TEST_EXPORTER_FAILS", "")),
        file_(nixl::config::getValue<std::string>("TEST_EXPORTER_FILE"), std::ios::app) {
    if (fails_ == "make") throw std::runtime_error("there is no room for telemetry");
    if (fails_ == "taken") throw nixlTelemetryBindFailed("port 9 is taken");
    file_ << "begin," << init.agentName << ',' << init.maxEventsBuffered << std::endl;
  }
  ~CsvExporter() override { file_ << "end" << std::endl; }

  nixl_status_t exportEvent(const nixlTelemetryEvent& event) override {
    if (fails_ == "throw") throw std::runtime_error("the disk is full");
    if (fails_ == "export") return NIXL_ERR_BACKEND;
    file_ << nixlEnumStrings::telemetryEventTypeStr(event.eventType_) << ',' << event.value_ << std::endl;
    return NIXL_SUCCESS;
  }

 private:
  void onBatchBegin() noexcept override { file_ << "batch" << std::endl; }
  void onBatchEnd() noexcept override { file_ << "batch ends" << std::endl; }

  const std::string fails_;
  std::ofstream file_;
};

}  // namespace

extern "C" NIXL_TELEMETRY_PLUGIN_EXPORT nixlTelemetryPlugin* nixl_telemetry_plugin_init() {
  return nixlTelemetryPluginCreator<CsvExporter>::create(
      nixl_telemetry_plugin_api_version::EXPORTER_API_VERSION, "csv", "1.2.3");
}
extern "C" NIXL_TELEMETRY_PLUGIN_EXPORT void nixl_telemetry_plugin_fini() {}

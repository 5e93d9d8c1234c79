// Source- and binary-compatible with NIXL's header of this name: what an agent's telemetry goes to.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include <nixl_types.h>
#include <telemetry_event.h>

inline constexpr char telemetryExporterVar[] = "NIXL_TELEMETRY_EXPORTER";

// Thrown by an exporter whose address is taken: its agent goes on without telemetry's output, with a line in the log.
// Any other exception of its constructor fails the making of the agent.
class nixlTelemetryBindFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct nixlTelemetryExporterInitParams {
  std::string agentName;
  size_t maxEventsBuffered;
};

// One agent's. It is made and ended on the threads that make and end the agent, and called by one thread in between.
class nixlTelemetryExporter {
 public:
  explicit nixlTelemetryExporter(const nixlTelemetryExporterInitParams& init_params) noexcept
      : maxEventsBuffered_(init_params.maxEventsBuffered) {}
  nixlTelemetryExporter(const nixlTelemetryExporter&) = delete;
  nixlTelemetryExporter& operator=(const nixlTelemetryExporter&) = delete;
  virtual ~nixlTelemetryExporter() = default;

  [[nodiscard]] size_t getMaxEventsBuffered() const noexcept { return maxEventsBuffered_; }

  virtual nixl_status_t exportEvent(const nixlTelemetryEvent& event) = 0;

  // Calls `body`, whose events are one batch. Batches are not nested.
  template <class Body>
  void withBatch(Body&& body) {
    const Batch batch(*this);
    body();
  }

 private:
  class Batch {
   public:
    explicit Batch(nixlTelemetryExporter& exporter) noexcept : exporter_(exporter) {
      exporter_.onBatchBegin();
    }
    ~Batch() { exporter_.onBatchEnd(); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    nixlTelemetryExporter& exporter_;
  };

  virtual void onBatchBegin() noexcept {}
  virtual void onBatchEnd() noexcept {}

  const size_t maxEventsBuffered_;
};

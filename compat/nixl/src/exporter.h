// Counters for Prometheus at the place where NIXL's exporter of that name would serve.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <towline/telemetry.h>
#include "telemetry_counts.h"

namespace towline::nixl {

using SharedExporter = std::shared_ptr<towline_exporter_t>;

// Serves every agent's counters on this host under Towline's names, and `source` if it is not null. Null, with a line in
// the log, if the address can't be used.
[[nodiscard]] SharedExporter start_exporter(const std::string& address, towline_metric_source_t source,
                                            void* context);

// The page that a process serves at one address: its agents' counts under NIXL's names, and Towline's of the whole host.
class PageOfProcess {
 public:
  // The page of that address, which the agents of a process share. Null, with a line in the log, if the address can't be
  // used: most likely another process serves there.
  [[nodiscard]] static std::shared_ptr<PageOfProcess> share(const std::string& address);

  void add(const TelemetryCounts* counts);
  void remove(const TelemetryCounts* counts);

 private:
  static void collect(void* page, void (*take)(void* argument, const char* json, size_t bytes),
                      void* argument);

  std::mutex mutex_;
  std::vector<const TelemetryCounts*> counts_;
  SharedExporter exporter_;  // destroyed first: its threads read the rest
};

}  // namespace towline::nixl

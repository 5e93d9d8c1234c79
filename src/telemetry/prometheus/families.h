// Counters as Prometheus has them.
#pragma once

#include <prometheus/metric_family.h>

#include <string_view>
#include <vector>

namespace towline::telemetry {

// Makes families from the JSON of towline_host_metrics, and from the applications' own families in it
// (towline_exporter_add), each once for its name. Series with the same labels are added up. Invalid
// parts are skipped without an exception.
std::vector<prometheus::MetricFamily> make_families(std::string_view json);

}  // namespace towline::telemetry

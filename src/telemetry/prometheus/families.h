// Counters as Prometheus has them.
#pragma once

#include <prometheus/metric_family.h>

#include <string_view>
#include <vector>

namespace towline::telemetry {

// Of the JSON that towline_host_counters gives. Series that would bear the same labels are added up. What
// makes no sense is left out; never throws for it.
std::vector<prometheus::MetricFamily> make_families(std::string_view json);

}  // namespace towline::telemetry

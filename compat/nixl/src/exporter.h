// Counters for Prometheus at the place where NIXL's exporter of that name would serve.
#pragma once

#include <memory>
#include <string>

#include <towline/telemetry.h>

namespace towline::nixl {

using SharedExporter = std::shared_ptr<towline_exporter_t>;

// One serves every agent on this host, and a process's agents share it. Null, with a line in the log, when
// the address can't be served at: most likely another process does so already, for this one's agents too.
[[nodiscard]] SharedExporter share_exporter(const std::string& address);

}  // namespace towline::nixl

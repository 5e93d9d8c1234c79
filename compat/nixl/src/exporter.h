// Counters for Prometheus at the place where NIXL's exporter of that name would serve.
#pragma once

#include <memory>
#include <string>

#include <towline/telemetry.h>

namespace towline::nixl {

using SharedExporter = std::shared_ptr<towline_exporter_t>;

// One exporter serves every agent on this host, and the agents of a process share it. Null, with a line in
// the log, if the address can't be used: most likely another process already serves there, for this process's
// agents too.
[[nodiscard]] SharedExporter share_exporter(const std::string& address);

}  // namespace towline::nixl

// Tries the ways in which payload can be received, best first, and keeps why each that was tried before can't be had.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transports/tcpx/settings.h"
#include "transports/tcpx/sources/source.h"

namespace towline::tcpx {

struct Rung {
  std::string name;
  std::string why_not;  // empty: it is used
};

struct Ladder {
  std::unique_ptr<Provider> provider;
  std::vector<Rung> rungs;  // as far as they were tried
};

[[nodiscard]] bool is_source(const std::string& name);
[[nodiscard]] std::string source_names();  // for people

// Throws plugin::Failure with every reason if no source can be had. `host` outlives the provider.
[[nodiscard]] Ladder climb(const Settings& settings, const plugin::Host& host);

}  // namespace towline::tcpx

// The results of a replay, for programs and for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/setup.h"
#include "terminal.h"

namespace tool::replay {

// The ranks' reports; a side that ran elsewhere is empty.
struct Reports {
  std::vector<nlohmann::json> prefill;
  std::vector<nlohmann::json> decode;
};

// Everything that --json prints. Times in seconds, rates in bytes per second.
[[nodiscard]] nlohmann::json summarise(const Setup& setup, const Reports& reports);
[[nodiscard]] std::string render_summary(const nlohmann::json& summary, const Terminal& terminal);

// "shm (mapped memfd)": the backend of a route, and how it reaches the peer's memory.
[[nodiscard]] std::string describe_route(const std::string& route);
// "priced 4.1 us (measured)": what such a transfer takes by the route. Empty: the route does not say.
[[nodiscard]] std::string describe_price(const std::string& route);

}  // namespace tool::replay

// The variables of the environment that keep their known names.
#pragma once

#include <tcpx_p2p.h>

#include <cstdint>
#include <string>
#include <vector>

namespace towline_tcpx {

struct Settings {
  std::vector<std::string> listen;  // addresses to try, in this order
  std::string backends;
  std::string config;
};

// Throws towline::Error, naming the value.
[[nodiscard]] Settings read_settings(const tcpx_session_options_t& options);

}  // namespace towline_tcpx

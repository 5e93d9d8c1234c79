// The variables of the environment that keep their known names. NIXL's plugin TCPX (compat/nixl/plugin) reads them by this, too.
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

// Does the environment say at which port to listen?
[[nodiscard]] bool names_port();
// Options come before variables. Throws towline::Error, naming the value.
[[nodiscard]] Settings read_settings(const tcpx_session_options_t& options);

}  // namespace towline_tcpx

// TCP on this host's loopback, for servers and proxies of the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "support/ports.h"

namespace towline::support {

// How long a loop waits before it looks whether it should end.
inline constexpr int kLookMs = 20;

int listen_anywhere(uint16_t& port);  // a listening socket, and where. Throws
int connect_to(uint16_t port);        // -1: nobody takes it
bool send_all(int fd, const char* data, size_t bytes);
inline bool send_all(int fd, const std::string& text) { return send_all(fd, text.data(), text.size()); }

}  // namespace towline::support

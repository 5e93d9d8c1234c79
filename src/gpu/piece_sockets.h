// Sockets over which processes of one host hand pieces of GPU memory to one another.
#pragma once

#include <string>

#include "base/clock.h"

namespace towline::cuda {

// For poll(): what is left until the deadline, a second at most, so that its caller looks at other things, too.
[[nodiscard]] int poll_ms(Deadline deadline);

// Processes of other users are strangers.
[[nodiscard]] bool of_this_user(int socket) noexcept;

// Connects to that name in the abstract namespace, which listens already. Waits while its backlog is full. 0, ETIMEDOUT at
// the deadline, or another errno.
[[nodiscard]] int connect_before(int socket, const std::string& name, Deadline deadline);

}  // namespace towline::cuda

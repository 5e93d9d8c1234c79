// Stream sockets with deadlines, for the control path and for lanes between hosts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/os/socket_address.h"
#include "base/os/unique_fd.h"
#include "towline/status.h"

namespace towline::rendezvous {

void set_no_delay(int fd) noexcept;
// Sets a congestion control by its kernel name; an unknown name leaves the kernel's choice.
void set_congestion(int fd, const std::string& name) noexcept;

// Connects to the first address that answers; with `patient` it tries again until the deadline while the
// connection is refused (the other side is not there yet). Non-blocking, no delay. Throws Error.
UniqueFd dial(const Endpoint& endpoint, Deadline deadline, bool patient);

// Sends or receives all bytes by the deadline: kOk, kTimedOut, kPeerLost (closed or reset). The sockets are
// non-blocking.
Status send_all(int fd, std::span<const uint8_t> bytes, Deadline deadline) noexcept;
Status receive_all(int fd, std::span<uint8_t> bytes, Deadline deadline) noexcept;

// poll() in whole milliseconds rounded up until the deadline, at most `most_ms`.
int poll_timeout_ms(Deadline deadline, int most_ms) noexcept;

}  // namespace towline::rendezvous

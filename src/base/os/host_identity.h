// The identity of this process and its host: decides which peers are on the same host and can be reached
// through it.
#pragma once

#include <cstdint>

#include "base/id.h"
#include "base/wire.h"

namespace towline {

struct HostIdentity {
  Id boot_id;                       // of the running kernel: equal means same host, same boot
  uint32_t pid = 0;                 // in this process's own pid namespace
  uint64_t pid_namespace = 0;       // inode; pids compare only within one namespace
  uint64_t network_namespace = 0;   // inode; abstract sockets and loopback are shared only within one
  uint64_t process_start_time = 0;  // clock ticks since boot; tells a reused pid from the old process

  bool same_host(const HostIdentity& other) const noexcept {
    return !boot_id.is_none() && boot_id == other.boot_id;
  }
  bool same_pid_namespace(const HostIdentity& other) const noexcept {
    return same_host(other) && pid_namespace != 0 && pid_namespace == other.pid_namespace;
  }
  bool same_network_namespace(const HostIdentity& other) const noexcept {
    return same_host(other) && network_namespace != 0 && network_namespace == other.network_namespace;
  }
  bool same_process(const HostIdentity& other) const noexcept {
    return same_pid_namespace(other) && pid == other.pid && process_start_time == other.process_start_time;
  }

  friend bool operator==(const HostIdentity&, const HostIdentity&) noexcept = default;
};

// Reads /proc for the calling process; what can't be read stays 0. Not cached: right after fork, too.
HostIdentity read_host_identity();

// Start time of a process in clock ticks since boot; 0 when there is no such process or it is not visible.
// A pid that was reused has another start time.
uint64_t process_start_time(uint32_t pid);

// True only if it is certain: the process was seen from this process's pid namespace, and has ended. False if
// unknown.
bool process_is_gone(const HostIdentity& process);

// As ranks of a group tell each other.
void put(WireWriter& out, const HostIdentity& host);
[[nodiscard]] HostIdentity decode_host_identity(WireReader& in);

}  // namespace towline

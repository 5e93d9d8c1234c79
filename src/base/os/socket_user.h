// Finds the user of this host that owns the other end of a connection.
//
// Unix sockets say so (SO_PEERCRED). For TCP the kernel is asked who owns the socket at the other end
// (sock_diag, else /proc/net/tcp): one that is in this network namespace is found, one that is elsewhere is not.
// The answer is of the user that opened the socket, in this process's user namespace.
#pragma once

#include <sys/types.h>

#include <optional>

namespace towline {

struct SocketUser {
  enum class Where {
    kHere,       // a process of this host and network namespace; `user` holds
    kElsewhere,  // another host or network namespace
    kGone,       // it was here, and has closed its end since
    kUnknown,    // a local address, and the kernel does not say whose
  };
  Where where = Where::kUnknown;
  uid_t user = 0;
};

// `fd` is a connected stream socket. A few microseconds.
SocketUser socket_user(int fd) noexcept;
// The same without sock_diag, by a search that is slow where there are many sockets.
SocketUser socket_user_from_proc(int fd) noexcept;

// Whether an accepted connection may be served by an agent that serves its own user only: it comes from that
// user, or from elsewhere.
bool comes_from_same_user(int fd) noexcept;

}  // namespace towline

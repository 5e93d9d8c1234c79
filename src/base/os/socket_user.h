// Finds the user of this host that owns the other end of a connection.
//
// Unix sockets say so (SO_PEERCRED). For TCP the kernel is asked who owns the socket at the other end
// (sock_diag, else /proc/net/tcp): one that is in this network namespace is found, one that is elsewhere is not.
// The answer is of the user that opened the socket, in this process's user namespace.
#pragma once

#include <sys/types.h>

#include "base/os/unique_fd.h"
#include "towline/status.h"

namespace towline {

struct SocketUser {
  enum class Where {
    kHere,       // a process of this host and network namespace; `user` holds
    kElsewhere,  // another host or network namespace
    kGone,       // it was here, and has closed its end since
    kUnknown,    // a local address, and the kernel does not say whose
    kNoRoom,     // the kernel could not be asked: no descriptor was left
  };
  Where where = Where::kUnknown;
  uid_t user = 0;
};

// Why a connection is not served, behind its address; null: it is.
struct UserRefusal {
  const char* text = nullptr;
  Status status = Status::kOk;
};

// Keeps the socket by which it asks, so that it needs no descriptor for each question. One thread at a time.
class SocketUsers {
 public:
  SocketUsers() noexcept;
  // `fd` is a connected stream socket. A few microseconds.
  SocketUser find(int fd) noexcept;
  // Of an agent that serves its own user only: an accepted connection must come from that user, or from elsewhere.
  UserRefusal refusal(int fd) noexcept;

 private:
  UniqueFd netlink_;
};

// By a search that is slow where there are many sockets, without SocketUsers.
SocketUser socket_user_from_proc(int fd) noexcept;

}  // namespace towline

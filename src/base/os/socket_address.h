// Socket addresses as text and as the kernel takes them: IPv4, IPv6 and Unix stream sockets.
//
//   "10.0.0.7:7777"  "[fe80::1%eth0]:7777"  "host.name:7777"  "*:0"  "unix:/run/agent.sock"  "unix:@abstract"
//
// Control path: what can fail throws Error with the text of the address in it.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/os/unique_fd.h"

namespace towline {

// An address as people write it, not yet looked up. A value.
struct Endpoint {
  bool is_unix = false;
  std::string host;  // no brackets; "*" for all; Unix: the path, or "@name"
  uint16_t port = 0;

  std::string text() const;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// One address of one family. A value; the default is of no family.
class SocketAddress {
 public:
  SocketAddress() noexcept = default;
  SocketAddress(const sockaddr* address, socklen_t bytes) noexcept;

  static SocketAddress local_of(int fd) noexcept;  // none where the descriptor has none
  static SocketAddress peer_of(int fd) noexcept;
  static SocketAddress unix_socket(std::string_view path_or_at_name);  // throws Error when it is too long

  const sockaddr* get() const noexcept { return &storage_.any; }
  socklen_t size() const noexcept { return bytes_; }
  int family() const noexcept { return bytes_ == 0 ? AF_UNSPEC : storage_.any.sa_family; }
  bool is_unix() const noexcept { return family() == AF_UNIX; }
  bool is_any() const noexcept;       // 0.0.0.0 or ::
  bool is_loopback() const noexcept;  // 127/8, ::1 or a Unix socket
  bool is_link_local() const noexcept;

  uint16_t port() const noexcept;  // 0 for Unix sockets
  SocketAddress with_port(uint16_t port) const noexcept;

  // As in the head of this file; "none" for no family. An IPv4 address mapped into IPv6 prints as IPv4.
  std::string text() const;
  Endpoint endpoint() const;

  friend bool operator==(const SocketAddress& a, const SocketAddress& b) noexcept;

 private:
  union {
    sockaddr any;
    sockaddr_un unix;
    sockaddr_storage whole;
  } storage_ = {};
  socklen_t bytes_ = 0;
};

// Throw Error(kInvalidArgument). Without default_port a port is required.
Endpoint parse_endpoint(std::string_view text, std::optional<uint16_t> default_port = {});
std::vector<Endpoint> parse_endpoints(std::string_view comma_separated,
                                      std::optional<uint16_t> default_port = {});

// Looks a host up: numbers at once, names through the system's resolver on a thread of its own, which is left
// to end by itself when it outlasts the deadline (CLOCK_MONOTONIC). Throws Error(kUnreachable, kTimedOut).
// `meanwhile` is called at least every 100 ms until then, and may throw. Never empty.
std::vector<SocketAddress> resolve(const Endpoint& endpoint, Deadline deadline,
                                   const std::function<void()>& meanwhile = {});

// Inclusive; {0, 0} lets the kernel choose.
struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;
};
PortRange parse_port_range(std::string_view text);  // "", "7000", "7000-7100"; throws Error(kInvalidArgument)

// Never looks anything up: nullopt when the host is not a number (or Unix path).
std::optional<SocketAddress> numeric_address(const Endpoint& endpoint);

// A socket that takes connections: non-blocking, close-on-exec. Removes its Unix path when it goes.
class ListeningSocket {
 public:
  // Binds and listens. Ports: the endpoint's own if not 0, else the first free one of `ports`. "*" is one
  // socket for IPv6 and IPv4 alike where the host has IPv6. Throws Error: kAddressInUse and so on, naming the
  // address.
  explicit ListeningSocket(const Endpoint& endpoint, PortRange ports = {}, int backlog = 512);
  ListeningSocket(ListeningSocket&&) noexcept = default;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  int fd() const noexcept { return fd_.get(); }
  const SocketAddress& address() const noexcept { return address_; }

  // The next connection (non-blocking, close-on-exec), or an empty descriptor when none waits. Without free
  // descriptors it accepts the connection with a spare one and closes it; otherwise the pending connection
  // would wake the worker for ever. `*error` is then the errno.
  UniqueFd accept(SocketAddress* peer, int* error) noexcept;

  // The addresses at which others may reach it, best first: itself, or for "any" every address of the
  // interfaces that are up, without link-local ones, loopback last.
  std::vector<SocketAddress> reachable() const;

 private:
  UniqueFd fd_;
  UniqueFd spare_;
  SocketAddress address_;
  std::string path_;  // to remove
};

// The addresses of an interface that is up, without link-local ones, with port 0. Empty: of all interfaces. Throws Error.
std::vector<SocketAddress> interface_addresses(const std::string& interface);

// Warns, once in a process for each `what` (a literal), that sockets of it take connections from beyond this host.
void warn_of_open_ports(const char* what, std::span<const ListeningSocket* const> sockets);

// What to tell peers: the endpoints of `advertise` ("host[:port],...") if not empty, where a port left out is
// that of the first socket, and else where the sockets are reachable. Throws Error.
std::vector<Endpoint> advertised(std::string_view advertise, std::span<const ListeningSocket* const> sockets);

// A new non-blocking, close-on-exec stream socket. Throws Error.
UniqueFd open_stream_socket(int family);

// Before start_connect(): gives the socket an address of this host; its port is chosen when it connects. 0, or an errno.
int start_from(int fd, const SocketAddress& own) noexcept;
// Starts connecting a non-blocking socket: 0 when it is connected at once, EINPROGRESS, or why not.
int start_connect(int fd, const SocketAddress& address) noexcept;
// The outcome once it is writable: 0 or an errno.
int finish_connect(int fd) noexcept;

}  // namespace towline

#include "base/os/socket_address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace towline {
namespace {

const sockaddr_in& as_v4(const sockaddr* address) { return *reinterpret_cast<const sockaddr_in*>(address); }
const sockaddr_in6& as_v6(const sockaddr* address) { return *reinterpret_cast<const sockaddr_in6*>(address); }

bool is_mapped(const sockaddr_in6& address) { return IN6_IS_ADDR_V4MAPPED(&address.sin6_addr) != 0; }

// The IPv4 address inside a mapped IPv6 one, or of IPv4 itself; network order.
bool v4_of(const sockaddr* address, in_addr& out) {
  if (address->sa_family == AF_INET) {
    out = as_v4(address).sin_addr;
    return true;
  }
  if (address->sa_family != AF_INET6 || !is_mapped(as_v6(address))) return false;
  std::memcpy(&out, as_v6(address).sin6_addr.s6_addr + 12, sizeof out);
  return true;
}

bool parse_port(std::string_view text, uint16_t& port) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

}  // namespace

Endpoint parse_endpoint(std::string_view text, std::optional<uint16_t> default_port) {
  Endpoint endpoint;
  if (text.starts_with("unix:")) {
    endpoint.is_unix = true;
    endpoint.host = text.substr(5);
    SocketAddress::unix_socket(endpoint.host);  // throws when it can't be one
    return endpoint;
  }
  std::string_view host = text;
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos)
      fail(Status::kInvalidArgument, "address '{}': no closing bracket", text);
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest[0] != ':')
      fail(Status::kInvalidArgument, "address '{}': '{}' after the bracket", text, rest);
    has_port = !rest.empty();
    if (has_port) port = rest.substr(1);
  } else if (const std::size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    if (text.find(':') != colon) {
      fail(Status::kInvalidArgument, "address '{}': write an IPv6 address in brackets, [{}]:port", text,
           text);
    }
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  }
  if (host.empty() || host.size() > 255 || host.find_first_of(" \t\n\0", 0, 4) != std::string_view::npos) {
    fail(Status::kInvalidArgument, "address '{}': no host in it, as in host:port", text);
  }
  endpoint.host = host;
  if (has_port && !parse_port(port, endpoint.port)) {
    fail(Status::kInvalidArgument, "address '{}': the port is 0 to 65535, not '{}'", text, port);
  }
  if (!has_port && !default_port)
    fail(Status::kInvalidArgument, "address '{}': no port, as in host:port", text);
  if (!has_port) endpoint.port = *default_port;
  return endpoint;
}

namespace {

struct Lookup {
  std::mutex mutex;
  std::condition_variable done_changed;
  bool done = false;
  int error = 0;
  std::vector<SocketAddress> found;
};

int look_up(const std::string& host, uint16_t port, int flags, std::vector<SocketAddress>& found) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) return error;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> freed(list, &freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET || entry->ai_family == AF_INET6) {
      found.emplace_back(entry->ai_addr, entry->ai_addrlen);
    }
  }
  return found.empty() ? EAI_NONAME : 0;
}

constexpr uint64_t kMeanwhileEveryNs = 100 * kMillisecondNs;
constexpr uint64_t kLongestLookupNs = 3600 * kSecondNs;

void look_up_name(const std::string& host, uint16_t port, Deadline deadline,
                  std::vector<SocketAddress>& found, const std::function<void()>& meanwhile) {
  auto lookup = std::make_shared<Lookup>();
  std::thread([lookup, host, port] {
    std::vector<SocketAddress> addresses;
    int error = EAI_MEMORY;
    try {
      error = look_up(host, port, AI_ADDRCONFIG, addresses);
    } catch (const std::bad_alloc&) {  // that is what it says
    }
    const std::lock_guard lock(lookup->mutex);
    lookup->error = error;
    lookup->found = std::move(addresses);
    lookup->done = true;
    lookup->done_changed.notify_one();
  }).detach();
  std::unique_lock lock(lookup->mutex);
  const uint64_t slice = meanwhile ? kMeanwhileEveryNs : kLongestLookupNs;
  for (;;) {
    const uint64_t left = std::min(deadline.remaining_ns(monotonic_now_ns()), slice);
    if (lookup->done_changed.wait_for(lock, std::chrono::nanoseconds(left), [&] { return lookup->done; }))
      break;
    if (deadline.passed(monotonic_now_ns()))
      fail(Status::kTimedOut, "looking up the host '{}' took longer than the deadline", host);
    if (!meanwhile) continue;
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  if (lookup->error != 0) {
    fail(Status::kUnreachable, "looking up the host '{}': {}", host, gai_strerror(lookup->error));
  }
  found = std::move(lookup->found);
}

// A socket's path may be left over from a killed process: then nobody answers there.
bool is_stale_path(const std::string& path, const SocketAddress& address) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe.valid() && start_connect(probe.get(), address) == ECONNREFUSED;
}

// 0 or an errno.
int bind_and_listen(const SocketAddress& address, bool both_families, int backlog, UniqueFd& out) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  const int on = 1;
  const int v6_only = both_families ? 0 : 1;
  if (!address.is_unix()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
  if (bind(fd.get(), address.get(), address.size()) != 0) return errno;
  if (::listen(fd.get(), backlog) != 0) return errno;
  out = std::move(fd);
  return 0;
}

int bind_in_range(const SocketAddress& address, bool both_families, PortRange ports, int backlog,
                  UniqueFd& out) {
  if (address.is_unix() || address.port() != 0 || ports.first == 0) {
    return bind_and_listen(address, both_families, backlog, out);
  }
  int error = EADDRINUSE;
  for (uint32_t port = ports.first; port <= ports.last && error == EADDRINUSE; ++port) {
    error = bind_and_listen(address.with_port(static_cast<uint16_t>(port)), both_families, backlog, out);
  }
  return error;
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t bytes) noexcept
    : bytes_(std::min<socklen_t>(bytes, sizeof storage_)) {
  std::memcpy(&storage_, address, bytes_);
}

SocketAddress SocketAddress::local_of(int fd) noexcept {
  SocketAddress address;
  socklen_t bytes = sizeof address.storage_;
  if (getsockname(fd, &address.storage_.any, &bytes) == 0) address.bytes_ = bytes;
  return address;
}

SocketAddress SocketAddress::peer_of(int fd) noexcept {
  SocketAddress address;
  socklen_t bytes = sizeof address.storage_;
  if (getpeername(fd, &address.storage_.any, &bytes) == 0) address.bytes_ = bytes;
  return address;
}

SocketAddress SocketAddress::unix_socket(std::string_view path) {
  SocketAddress address;
  constexpr std::size_t kMost = sizeof address.storage_.unix.sun_path - 1;
  if (path.empty() || path == "@")
    fail(Status::kInvalidArgument, "address 'unix:{}': no path or @name", path);
  if (path.size() > kMost) {
    fail(Status::kInvalidArgument, "address 'unix:{}': {} bytes, and at most {} are possible", path,
         path.size(), kMost);
  }
  address.storage_.unix.sun_family = AF_UNIX;
  std::memcpy(address.storage_.unix.sun_path, path.data(), path.size());
  const bool abstract = path[0] == '@';
  if (abstract) address.storage_.unix.sun_path[0] = 0;
  address.bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1));
  return address;
}

bool SocketAddress::is_any() const noexcept {
  if (family() == AF_INET) return as_v4(get()).sin_addr.s_addr == 0;
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&as_v6(get()).sin6_addr) != 0;
}

bool SocketAddress::is_loopback() const noexcept {
  if (is_unix()) return true;
  in_addr v4 = {};
  if (bytes_ != 0 && v4_of(get(), v4)) return (ntohl(v4.s_addr) >> 24) == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&as_v6(get()).sin6_addr) != 0;
}

bool SocketAddress::is_link_local() const noexcept {
  in_addr v4 = {};
  if (bytes_ != 0 && v4_of(get(), v4)) return (ntohl(v4.s_addr) >> 16) == 0xa9fe;
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&as_v6(get()).sin6_addr) != 0;
}

uint16_t SocketAddress::port() const noexcept {
  if (family() == AF_INET) return ntohs(as_v4(get()).sin_port);
  return family() == AF_INET6 ? ntohs(as_v6(get()).sin6_port) : 0;
}

SocketAddress SocketAddress::with_port(uint16_t port) const noexcept {
  SocketAddress copy = *this;
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&copy.storage_)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&copy.storage_)->sin6_port = htons(port);
  return copy;
}

Endpoint SocketAddress::endpoint() const {
  if (is_unix()) {
    const std::size_t prefix = offsetof(sockaddr_un, sun_path);
    if (bytes_ <= prefix) return {true, "", 0};  // the unnamed end of a connection
    std::string path(storage_.unix.sun_path, bytes_ - prefix);
    if (path[0] == 0) return {true, "@" + path.substr(1), 0};
    return {true, path.substr(0, path.find('\0')), 0};
  }
  char host[INET6_ADDRSTRLEN] = "none";
  in_addr v4 = {};
  if (bytes_ != 0 && v4_of(get(), v4)) {
    inet_ntop(AF_INET, &v4, host, sizeof host);
  } else if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &as_v6(get()).sin6_addr, host, sizeof host);
    char interface[IF_NAMESIZE] = "?";
    const uint32_t scope = as_v6(get()).sin6_scope_id;
    if (scope != 0 && if_indextoname(scope, interface) != nullptr) {
      return {false, fmt::format("{}%{}", host, interface), port()};
    }
  }
  return {false, host, port()};
}

std::string SocketAddress::text() const { return bytes_ == 0 ? "none" : endpoint().text(); }

bool operator==(const SocketAddress& a, const SocketAddress& b) noexcept {
  return a.bytes_ == b.bytes_ && std::memcmp(&a.storage_, &b.storage_, a.bytes_) == 0;
}

std::string Endpoint::text() const {
  if (is_unix) return "unix:" + host;
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

std::vector<Endpoint> parse_endpoints(std::string_view list, std::optional<uint16_t> default_port) {
  std::vector<Endpoint> endpoints;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    std::string_view one = list.substr(begin, comma - begin);
    one.remove_prefix(std::min(one.find_first_not_of(' '), one.size()));
    one = one.substr(0, one.find_last_not_of(' ') + 1);
    if (one.empty()) fail(Status::kInvalidArgument, "addresses '{}': one of them is empty", list);
    endpoints.push_back(parse_endpoint(one, default_port));
    begin = comma + 1;
  }
  return endpoints;
}

std::vector<SocketAddress> resolve(const Endpoint& endpoint, Deadline deadline,
                                   const std::function<void()>& meanwhile) {
  if (endpoint.is_unix) return {SocketAddress::unix_socket(endpoint.host)};
  std::vector<SocketAddress> found;
  if (endpoint.host == "*")
    fail(Status::kInvalidArgument, "'{}' can be listened on, not connected to", endpoint.text());
  if (look_up(endpoint.host, endpoint.port, AI_NUMERICHOST, found) == 0) return found;
  look_up_name(endpoint.host, endpoint.port, deadline, found, meanwhile);
  return found;
}

std::optional<SocketAddress> numeric_address(const Endpoint& endpoint) {
  if (endpoint.is_unix) return SocketAddress::unix_socket(endpoint.host);
  std::vector<SocketAddress> found;
  if (endpoint.host == "*" || look_up(endpoint.host, endpoint.port, AI_NUMERICHOST, found) != 0) return {};
  return found.front();
}

PortRange parse_port_range(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t dash = text.find('-');
  PortRange range;
  const std::string_view first = text.substr(0, dash);
  const std::string_view last = dash == std::string_view::npos ? first : text.substr(dash + 1);
  if (!parse_port(first, range.first) || !parse_port(last, range.last) || range.first == 0 ||
      range.first > range.last) {
    fail(Status::kInvalidArgument, "port range '{}': expected two ports as in 7000-7100", text);
  }
  return range;
}

ListeningSocket::ListeningSocket(const Endpoint& endpoint, PortRange ports, int backlog)
    : spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  int error = 0;
  if (!endpoint.is_unix && endpoint.host == "*") {
    sockaddr_in6 every = {};
    every.sin6_family = AF_INET6;
    every.sin6_port = htons(endpoint.port);
    error = bind_in_range({reinterpret_cast<sockaddr*>(&every), sizeof every}, true, ports, backlog, fd_);
    if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) {  // no IPv6 here
      sockaddr_in every_v4 = {};
      every_v4.sin_family = AF_INET;
      every_v4.sin_port = htons(endpoint.port);
      error = bind_in_range({reinterpret_cast<sockaddr*>(&every_v4), sizeof every_v4}, false, ports, backlog,
                            fd_);
    }
  } else {
    const SocketAddress address =
        resolve(endpoint, Deadline::after(monotonic_now_ns(), 10 * kSecondNs)).front();
    error = bind_in_range(address, false, ports, backlog, fd_);
    if (error == EADDRINUSE && address.is_unix() && endpoint.host[0] != '@' &&
        is_stale_path(endpoint.host, address)) {
      unlink(endpoint.host.c_str());
      error = bind_in_range(address, false, ports, backlog, fd_);
    }
  }
  if (error != 0) {
    const std::string in_range = endpoint.is_unix || endpoint.port != 0 || ports.first == 0
                                     ? ""
                                     : fmt::format(" with ports {} to {}", ports.first, ports.last);
    const Status status = error == EADDRINUSE ? Status::kAddressInUse : status_from_errno(error);
    fail(status, "listening on {}{}: {}", endpoint.text(), in_range, errno_text(error));
  }
  address_ = SocketAddress::local_of(fd_.get());
  if (endpoint.is_unix && endpoint.host[0] != '@') path_ = endpoint.host;
}

ListeningSocket::~ListeningSocket() {
  if (fd_.valid() && !path_.empty()) unlink(path_.c_str());
}

UniqueFd ListeningSocket::accept(SocketAddress* peer, int* error) noexcept {
  *error = 0;
  // Another thread may have taken its place the last time.
  if (!spare_.valid()) spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  sockaddr_storage storage = {};
  for (;;) {
    socklen_t bytes = sizeof storage;
    auto* any = reinterpret_cast<sockaddr*>(&storage);
    UniqueFd fd(accept4(fd_.get(), any, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      if (peer != nullptr) *peer = SocketAddress(any, bytes);
      return fd;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    if (errno == EMFILE || errno == ENFILE) {
      const int none_left = errno;
      pollfd waiting = {fd_.get(), POLLIN, 0};
      if (poll(&waiting, 1, 0) == 0) return {};  // the error comes where nobody waits, too
      *error = none_left;
      spare_.reset();
      UniqueFd refused(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      refused.reset();
      spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
      return {};
    }
    if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == ENOMEM || errno == ENOBUFS) {
      *error = errno;
      return {};
    }  // the rest is about one connection that went away again: take the next
  }
}

// The addresses of `interface`, or of all interfaces if it is empty; without ports.
std::vector<SocketAddress> interface_addresses(const std::string& interface) {
  std::vector<SocketAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    fail(status_from_errno(errno), "listing network interfaces: {}", errno_text(errno));
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (!interface.empty() && interface != entry->ifa_name) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const SocketAddress address(entry->ifa_addr, bytes);
    if (!address.is_link_local()) found.push_back(address.with_port(0));
  }
  freeifaddrs(list);
  return found;
}

std::vector<SocketAddress> ListeningSocket::reachable() const {
  if (!address_.is_any()) return {address_};
  std::vector<SocketAddress> global;
  std::vector<SocketAddress> loopback;
  for (const SocketAddress& found : interface_addresses("")) {
    if (found.family() == AF_INET6 && address_.family() != AF_INET6) continue;
    const SocketAddress address = found.with_port(address_.port());
    (address.is_loopback() ? loopback : global).push_back(address);
  }
  std::stable_sort(global.begin(), global.end(), [](const SocketAddress& a, const SocketAddress& b) {
    return a.family() == AF_INET && b.family() != AF_INET;
  });
  global.insert(global.end(), loopback.begin(), loopback.end());
  return global;
}

void warn_of_open_ports(const char* what, std::span<const ListeningSocket* const> sockets) {
  static std::mutex mutex;
  static auto& warned = *new std::set<std::string>;  // outlives every thread
  std::string open;
  for (const ListeningSocket* socket : sockets)
    if (!socket->address().is_loopback()) open += (open.empty() ? "" : ", ") + socket->address().text();
  if (open.empty()) return;
  const std::lock_guard lock(mutex);
  if (!warned.insert(what).second) return;
  TOWLINE_LOG(kWarning,
              "{} takes connections from other hosts at {}: anyone who reaches it can use the registered "
              "memory. "
              "secure.key_file or certificates (docs/security.md) keep strangers out",
              what, open);
}

std::vector<Endpoint> advertised(std::string_view advertise,
                                 std::span<const ListeningSocket* const> sockets) {
  std::vector<Endpoint> endpoints;
  if (!advertise.empty()) {
    endpoints = parse_endpoints(advertise, 0);
    for (Endpoint& endpoint : endpoints) {
      if (endpoint.port == 0 && !sockets.empty()) endpoint.port = sockets.front()->address().port();
    }
    return endpoints;
  }
  for (const ListeningSocket* socket : sockets) {
    for (const SocketAddress& address : socket->reachable()) {
      const Endpoint endpoint = address.endpoint();
      if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end())
        endpoints.push_back(endpoint);
    }
  }
  return endpoints;
}

UniqueFd open_stream_socket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid())
    fail(status_from_errno(errno), "opening a socket of address family {}: {}", family, errno_text(errno));
  return fd;
}

int start_from(int fd, const SocketAddress& own) noexcept {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  return bind(fd, own.get(), own.size()) == 0 ? 0 : errno;
}

int start_connect(int fd, const SocketAddress& address) noexcept {
  while (connect(fd, address.get(), address.size()) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

int finish_connect(int fd) noexcept {
  int error = 0;
  socklen_t bytes = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

}  // namespace towline

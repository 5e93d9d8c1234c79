// TCP ports of this host's loopback for tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace towline::support {

inline sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline std::string loopback_address(uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

// Of a bound socket. 0: it has none.
inline uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 ? ntohs(address.sin_port) : 0;
}

// A socket that has this port, or any for 0, and does not listen. -1: it is taken.
inline int bound_to(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

// Nobody listens at it when it is given. It is not one of those that the kernel gives to sockets that connect: another
// program's would take it, and one that waits for its server there could connect to itself. Processes begin at different ones.
inline uint16_t free_port() {
  constexpr int kFirst = 20000;
  constexpr int kCount = 12000;
  static std::atomic<int> next{getpid() * 61};
  for (int tries = 0; tries < kCount; ++tries) {
    const auto port = static_cast<uint16_t>(kFirst + next++ % kCount);
    if (const int fd = bound_to(port); fd >= 0) {
      ::close(fd);
      return port;
    }
  }
  throw std::runtime_error("no port is free");
}

// An address at which nobody listens, and at which no other program can begin to meanwhile.
class NobodyListens {
 public:
  NobodyListens() {
    const uint16_t port = port_of(fd_);
    if (port == 0) throw std::runtime_error("no port is free");
    address_ = loopback_address(port);
  }
  ~NobodyListens() { ::close(fd_); }
  NobodyListens(const NobodyListens&) = delete;
  NobodyListens& operator=(const NobodyListens&) = delete;
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  const int fd_ = bound_to(0);
  std::string address_;
};

}  // namespace towline::support

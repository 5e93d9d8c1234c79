#include "support/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

namespace towline::support {

namespace {

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

std::string loopback_address(uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

int listen_anywhere(uint16_t& port) {
  const int fd = bound_to(0);
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  if (fd < 0 || listen(fd, 128) != 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    if (fd >= 0) close(fd);
    throw std::runtime_error("no port to listen at");
  }
  port = ntohs(address.sin_port);
  return fd;
}

int connect_to(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

bool send_all(int fd, const char* data, size_t bytes) {
  while (bytes != 0) {
    const ssize_t sent = ::send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace towline::support

#include "channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "failure.h"

namespace tool {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Channel::Channel(Channel&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), closed_(other.closed_), received_(std::move(other.received_)) {}

Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(closed_, other.closed_);
  std::swap(received_, other.received_);
  return *this;
}

Channel::~Channel() {
  if (fd_ >= 0) ::close(fd_);
}

void Channel::send(const nlohmann::json& message) {
  const std::string line = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t count = ::send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    sent += static_cast<size_t>(count);
  }
}

std::optional<nlohmann::json> Channel::take_line() {
  const size_t end = received_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  const std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  auto message = nlohmann::json::parse(line, nullptr, false);
  if (message.is_discarded())
    throw Failure{"a process of this command sent text that is not JSON: " + line.substr(0, 200)};
  return message;
}

std::optional<nlohmann::json> Channel::try_receive() {
  while (true) {
    if (auto message = take_line()) return message;
    if (closed_) return std::nullopt;
    std::array<char, 65536> buffer;
    const ssize_t count = ::recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (count <= 0) {
      closed_ = true;
    } else {
      received_.append(buffer.data(), static_cast<size_t>(count));
    }
  }
}

std::optional<nlohmann::json> Channel::receive(milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  while (true) {
    if (auto message = try_receive()) return message;
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    if (closed_ || left.count() <= 0) return std::nullopt;
    pollfd wait{fd_, POLLIN, 0};
    (void)::poll(&wait, 1, static_cast<int>(left.count()));
  }
}

}  // namespace tool

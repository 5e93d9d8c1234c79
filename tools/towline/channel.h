// JSON lines over a socket: how a command and the processes it started talk.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tool {

// The socket to the process that started this one, by convention.
inline constexpr int kParentSocket = 3;

// One end. Owns its socket. Not for use by several threads at once.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();

  [[nodiscard]] int fd() const { return fd_; }
  // True once the other side has gone and everything it sent was received.
  [[nodiscard]] bool closed() const { return closed_; }

  // Sends a message; no effect if the other side has gone. May block while its buffer is full.
  void send(const nlohmann::json& message);
  // The next message if one is here. Never blocks. Throws Failure for text that is not JSON.
  [[nodiscard]] std::optional<nlohmann::json> try_receive();
  // Waits for one; nothing if it timed out or the other side has gone.
  [[nodiscard]] std::optional<nlohmann::json> receive(std::chrono::milliseconds timeout);

 private:
  [[nodiscard]] std::optional<nlohmann::json> take_line();

  int fd_;
  bool closed_ = false;
  std::string received_;
};

}  // namespace tool

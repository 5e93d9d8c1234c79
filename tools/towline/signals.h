// Ctrl-C and SIGTERM as something to wait for.
#pragma once

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

#include "failure.h"

namespace tool {

// They end a wait instead of the process. Make it before any thread.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
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
  // False: a signal came, and has been taken. Negative: waits for one.
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

}  // namespace tool

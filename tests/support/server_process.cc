#include "support/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "support/loopback.h"

namespace towline::support {

namespace {

constexpr auto kStartLimit = std::chrono::seconds(60);

}  // namespace

std::string found_program(const std::string& name) {
  const char* home = getenv("HOME");
  const std::string kept = std::string(home == nullptr ? "" : home) + "/.cache/towline/bin/" + name;
  if (access(kept.c_str(), X_OK) == 0) return kept;
  return std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0 ? name : "";
}

ServerProcess::~ServerProcess() { stop(SIGKILL); }

void ServerProcess::start(std::vector<std::string> words, const Environment& environment,
                          const std::string& log, uint16_t port) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  const auto until = std::chrono::steady_clock::now() + kStartLimit;
  while (std::chrono::steady_clock::now() < until) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      break;
    }
    if (const int fd = connect_to(port); fd >= 0) {
      close(fd);
      return;
    }
    (void)poll(nullptr, 0, kLookMs);
  }
  throw std::runtime_error(words[0] + " does not start; see " + log);
}

void ServerProcess::stop(int signal) {
  if (pid_ <= 0) return;
  kill(pid_, SIGCONT);
  kill(pid_, signal);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void ServerProcess::send(int signal) const {
  kill(pid_, signal);
  int status = 0;
  if (signal == SIGSTOP) waitpid(pid_, &status, WUNTRACED);
}

}  // namespace towline::support

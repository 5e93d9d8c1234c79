#include "process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "failure.h"
#include "signals.h"
#include "streams.h"

namespace tool {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr int kNotStarted = 127;

[[noreturn]] void fail(const char* what) { throw Failure{fmt::format("{}: {}", what, std::strerror(errno))}; }

// Between fork and exec. The terminal's Ctrl-C reaches every process in the foreground; only the parent acts
// on it.
[[noreturn]] void become(int socket, const std::string& work,
                         const std::vector<std::pair<std::string, std::string>>& environment, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  const sigset_t signals = ending_signals();
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  signal(SIGINT, SIG_IGN);
  if (socket == kParentSocket) {
    fcntl(socket, F_SETFD, 0);
  } else {
    dup2(socket, kParentSocket);
  }
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  execl("/proc/self/exe", "towline", "worker", work.c_str(), static_cast<char*>(nullptr));
  _exit(kNotStarted);
}

}  // namespace

std::string local_address(std::string_view label, uint32_t rank) {
  return fmt::format("unix:@towline-{}-{}-{}", getpid(), label, rank);
}

std::string address_of_rank(std::string_view option, const std::string& first, uint32_t rank) {
  const size_t colon = first.rfind(':');
  uint32_t port = 0;
  const char* begin = first.data() + (colon == std::string::npos ? first.size() : colon + 1);
  const char* end = first.data() + first.size();
  const auto [stop, error] = std::from_chars(begin, end, port);
  if (error != std::errc{} || stop != end || port > 65535)
    throw Failure{fmt::format("{} {}: expected host:port", option, first)};
  if (port != 0 && port + rank > 65535)
    throw Failure{fmt::format("{} {}: ports end at 65535, and {} more are needed", option, first, rank)};
  return fmt::format("{}:{}", first.substr(0, colon), port == 0 ? 0 : port + rank);
}

std::string own_address_towards(std::string_view option, const std::string& address) {
  if (address.starts_with("unix:")) return "127.0.0.1:0";
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;  // connecting one sends nothing
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), "9", &hints, &found);
  if (error != 0) throw Failure{fmt::format("{} {}: {}", option, address, gai_strerror(error))};
  char own[NI_MAXHOST] = "";
  bool is_v6 = false;
  for (const addrinfo* one = found; one != nullptr && own[0] == 0; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage name = {};
    socklen_t bytes = sizeof name;
    if (fd >= 0 && connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&name), &bytes) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&name), bytes, own, sizeof own, nullptr, 0, NI_NUMERICHOST) ==
            0) {
      is_v6 = one->ai_family == AF_INET6;
    }
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  if (own[0] == 0) throw Failure{fmt::format("{} {}: no network route to it", option, address)};
  return is_v6 ? fmt::format("[{}]:0", own) : fmt::format("{}:0", own);
}

Child::Child(std::string label, const std::string& work, const nlohmann::json& configuration,
             const std::vector<std::pair<std::string, std::string>>& environment)
    : label_(std::move(label)), channel_(-1) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) fail("socketpair");
  channel_ = Channel{sockets[0]};
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(sockets[1], work, environment, parent);
  const int fork_error = errno;
  ::close(sockets[1]);
  errno = fork_error;
  if (pid_ < 0) fail("fork");
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  channel_.send(configuration);
}

Child::~Child() {
  if (pid_ > 0 && !ended()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pidfd_ >= 0) ::close(pidfd_);
}

bool Child::ended() {
  if (!ended_ && waitpid(pid_, &wait_status_, WNOHANG) == pid_) ended_ = true;
  return ended_;
}

std::string Child::describe_end() const {
  if (WIFSIGNALED(wait_status_)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(wait_status_),
                       strsignal(WTERMSIG(wait_status_)));
  }
  if (WEXITSTATUS(wait_status_) == kNotStarted)
    return "can't be started from /proc/self/exe: is /proc there?";
  return fmt::format("exited with code {}", WEXITSTATUS(wait_status_));
}

Crew::Crew() {
  const sigset_t signals = ending_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signal_fd_ < 0) fail("signalfd");
}

Crew::~Crew() {
  for (const auto& child : children_) child->channel().send({{"command", "stop"}});
  wait_for_end(milliseconds{2000});
  children_.clear();
  ::close(signal_fd_);
  const sigset_t signals = ending_signals();
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
}

Child& Crew::start(std::string label, const std::string& work, const nlohmann::json& configuration,
                   const std::vector<std::pair<std::string, std::string>>& environment) {
  children_.push_back(std::make_unique<Child>(std::move(label), work, configuration, environment));
  return *children_.back();
}

void Crew::check_signals() const {
  signalfd_siginfo signal;
  if (read(signal_fd_, &signal, sizeof signal) == sizeof signal) throw Interrupted{};
}

Crew::Message Crew::receive(milliseconds timeout) {
  if (kept_.empty()) return receive_new(timeout);
  Message message = std::move(kept_.front());
  kept_.pop_front();
  return message;
}

Crew::Message Crew::receive_new(milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  while (true) {
    check_signals();
    for (const auto& child : children_) {
      const bool ended = child->ended();  // before reading, so that its last messages are read
      if (auto message = child->channel().try_receive()) {
        if (message->contains("error")) {
          throw Failure{fmt::format("{}: {}", child->label(), (*message)["error"].get<std::string>())};
        }
        return {child.get(), std::move(*message)};
      }
      if (ended && !finishing_) {
        throw Failure{fmt::format("{} (process {}) {}", child->label(), child->pid(), child->describe_end())};
      }
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) return {};
    std::vector<pollfd> waits{{signal_fd_, POLLIN, 0}};
    for (const auto& child : children_) {
      if (!child->channel().closed()) waits.push_back({child->channel().fd(), POLLIN, 0});
      if (child->pidfd() >= 0) waits.push_back({child->pidfd(), POLLIN, 0});
    }
    (void)::poll(waits.data(), waits.size(), static_cast<int>(left.count()));
  }
}

nlohmann::json Crew::expect(Child& child, const std::string& key, milliseconds timeout) {
  const auto wanted = [&](const Message& message) {
    return message.child == &child && message.content.contains(key);
  };
  if (const auto kept = std::ranges::find_if(kept_, wanted); kept != kept_.end()) {
    nlohmann::json content = std::move(kept->content);
    kept_.erase(kept);
    return content;
  }
  const auto deadline = steady_clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    Message message = receive_new(std::max(left, milliseconds{0}));
    if (wanted(message)) return std::move(message.content);
    if (message.child == nullptr) {
      throw Failure{
          fmt::format("{} did not answer within {} ms ('{}')", child.label(), timeout.count(), key)};
    }
    kept_.push_back(std::move(message));
  }
}

void Crew::wait_for_end(milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  for (const auto& child : children_) {
    while (!child->ended()) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
      if (left.count() <= 0) return;
      pollfd wait{child->pidfd(), POLLIN, 0};
      // Without a pidfd (an old kernel) check again soon.
      (void)::poll(&wait, child->pidfd() >= 0 ? 1 : 0,
                   child->pidfd() >= 0 ? static_cast<int>(left.count()) : 10);
    }
  }
}

void Crew::finish() {
  finishing_ = true;
  for (const auto& child : children_) child->channel().send({{"command", "stop"}});
  wait_for_end(milliseconds{10000});
  for (const auto& child : children_) {
    if (!child->ended()) {
      throw Failure{fmt::format("{} (process {}) did not end within 10 s", child->label(), child->pid())};
    }
    if (!child->ended_well()) {
      std::string text =
          fmt::format("{} (process {}) {} while ending", child->label(), child->pid(), child->describe_end());
      while (auto message = child->channel().try_receive()) {
        if (message->contains("error")) text += ": " + (*message)["error"].get<std::string>();
      }
      throw Failure{text};
    }
  }
  children_.clear();
}

void prepare_worker() {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  signal(SIGPIPE, SIG_IGN);
  if (fcntl(kParentSocket, F_SETFD, FD_CLOEXEC) != 0) {
    throw Failure{"only towline itself starts a worker"};
  }
}

nlohmann::json worker_configuration(Channel& parent) {
  auto configuration = parent.receive(milliseconds{10000});
  if (!configuration) throw Failure{"the parent sent no configuration"};
  return std::move(*configuration);
}

void report_worker_failure(Channel& parent, const char* what) {
  if (parent.closed()) {
    tell(stderr, fmt::format("towline: error: {}\n", what));
  } else {
    parent.send({{"error", what}});
  }
}

}  // namespace tool

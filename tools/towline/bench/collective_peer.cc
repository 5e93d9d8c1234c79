#include "bench/collective_peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "failure.h"

namespace tool::bench {
namespace {

constexpr auto kStartLimit = std::chrono::minutes(3);  // importing torch is slow
constexpr auto kJobLimit = std::chrono::minutes(10);

}  // namespace

CollectivePeer::CollectivePeer(std::string kind, PeerPlace place)
    : kind_(std::move(kind)), place_(std::move(place)) {
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path().copy(address.sun_path, sizeof address.sun_path - 1);
  if (listener_ < 0 || ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_, 1) != 0)
    throw Failure{fmt::format("cannot listen at {}: {}", path(), std::strerror(errno))};
}

// A peer process ends when its channel closes.
CollectivePeer::~CollectivePeer() {
  channel_.reset();
  if (listener_ >= 0) ::close(listener_);
  if (process_ <= 0) return;
  for (int turn = 0; turn < 200; ++turn) {
    if (::waitpid(process_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

std::string CollectivePeer::path() const {
  return fmt::format("{}/{}-{}", place_.folder, kind_, place_.rank);
}

void CollectivePeer::spawn(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  const std::string log = path() + ".log";
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  if (::posix_spawnp(&process_, arguments[0], &files, &attributes, arguments.data(), environ) != 0)
    process_ = -1;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
}

std::string CollectivePeer::last_words() const {
  std::ifstream log(path() + ".log");
  std::string last;
  for (std::string line; std::getline(log, line);)
    if (line.find_first_not_of(" -\t") != std::string::npos) last = line;
  return last;
}

bool CollectivePeer::start(std::string& why) {
  const std::string size = std::to_string(place_.size);
  std::vector<std::string> command;
  if (kind_ == "gloo") {
    command = {place_.python, "-c", kGlooPeer, place_.folder, std::to_string(place_.rank), size};
  } else if (place_.rank == 0) {
    char self[4096] = {};
    if (::readlink("/proc/self/exe", self, sizeof self - 1) < 0) return false;
    command = {"mpirun", "-n", size, "--oversubscribe", "--bind-to", "none"};
    if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
    if (place_.tcp) command.insert(command.end(), {"--mca", "btl", "tcp,self"});
    command.insert(command.end(), {self, "worker", "bench-mpi-peer:" + place_.folder});
  }
  if (!command.empty()) {
    spawn(command);
    if (process_ < 0) {
      why = fmt::format("{} cannot be started", command[0]);
      std::ofstream(place_.folder + "/" + kind_ + ".off");
      return false;
    }
  }
  const auto limit = std::chrono::steady_clock::now() + kStartLimit;
  while (std::chrono::steady_clock::now() < limit) {
    pollfd polled = {listener_, POLLIN, 0};
    if (::poll(&polled, 1, 100) > 0) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      channel_ = std::make_unique<Channel>(fd);
      const auto hello = channel_->receive(kStartLimit);
      if (hello && hello->contains("version")) {
        version_ = hello->at("version");
        return true;
      }
      break;
    }
    // The first rank starts Open MPI's processes, and leaves a sign for the other ranks if they do not start.
    if (process_ > 0 && ::waitpid(process_, nullptr, WNOHANG) != 0) {
      process_ = -1;
      std::ofstream(place_.folder + "/" + kind_ + ".off");
      break;
    }
    if (::access((place_.folder + "/" + kind_ + ".off").c_str(), F_OK) == 0) break;
  }
  channel_.reset();
  why = last_words();
  if (why.empty()) why = "it does not start";
  return false;
}

std::optional<std::vector<double>> CollectivePeer::run(const CollectiveJob& job) {
  channel_->send(job);
  const auto answer = channel_->receive(kJobLimit);
  if (!answer) throw Failure{fmt::format("{} has ended: {}", kind_, last_words())};
  if (answer->contains("missing")) return std::nullopt;
  return answer->at("times").get<std::vector<double>>();
}

}  // namespace tool::bench

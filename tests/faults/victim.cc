#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "towline/towline.hpp"

namespace towline::faults {

using namespace std::chrono_literals;

Victim::Victim(const VictimOptions& options) {
  int down[2];
  int up[2];
  if (pipe(down) != 0 || pipe(up) != 0) throw std::runtime_error("pipe");
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(down[0], 0);
    dup2(up[1], 1);
    for (int fd = 3; fd < 1024; ++fd) close(fd);
    const char* const arguments[] = {"victim",
                                     "--victim",
                                     options.name.c_str(),
                                     options.listen.c_str(),
                                     options.backends.c_str(),
                                     options.config.c_str(),
                                     options.shared_memory ? "shared" : "private",
                                     options.own_network ? "own" : options.network.c_str(),
                                     options.kind == Kind::kVram ? "vram" : "dram",
                                     nullptr};
    execv("/proc/self/exe", const_cast<char* const*>(arguments));
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  to_ = down[1];
  from_ = up[0];
  if (!options.own_network) {
    wait_ready();
  } else {
    char byte = 0;
    if (read(from_, &byte, 1) != 1) throw std::runtime_error("the victim has no network namespace");
  }
}

Victim::~Victim() {
  kill_hard();
  close(to_);
  close(from_);
}

void Victim::network_ready() {
  if (write(to_, "n", 1) != 1) throw std::runtime_error("the victim is gone");
}

void Victim::wait_ready() {
  std::string line;
  char byte = 0;
  while (read(from_, &byte, 1) == 1 && byte != '\n') line.push_back(byte);
  const size_t space = line.find(' ');
  if (space == std::string::npos) throw std::runtime_error("the victim did not start: " + line);
  address_ = line.substr(0, space);
  memory_ = std::stoull(line.substr(space + 1));
}

void Victim::signal(int number) const { kill(pid_, number); }

void Victim::kill_hard() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int Victim::finish() {
  close(to_);
  to_ = -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int run_victim(int argc, char** argv) {
  if (argc != 9) return 2;
  if (std::string(argv[7]) == "own") {
    if (unshare(CLONE_NEWNET) != 0) return 3;
    char byte = 'u';
    if (write(1, &byte, 1) != 1 || read(0, &byte, 1) != 1) return 3;
  } else if (argv[7][0] != 0) {
    const int network = open((std::string("/run/netns/") + argv[7]).c_str(), O_RDONLY);
    if (network < 0 || setns(network, CLONE_NEWNET) != 0) return 3;
    close(network);
  }
  try {
    Agent agent(argv[2], {.listen = argv[3], .backends = argv[4], .config = argv[5]});
    std::unique_ptr<Memory> shared;
    std::vector<std::byte> plain;
    std::byte* memory = nullptr;
    if (std::string(argv[6]) == "shared") {
      shared = std::make_unique<Memory>(kVictimBytes);
      memory = shared->data();
    } else {
      plain.resize(kVictimBytes);
      memory = plain.data();
    }
    const Region region =
        agent.register_memory({.address = memory,
                               .bytes = kVictimBytes,
                               .kind = std::string(argv[8]) == "vram" ? Kind::kVram : Kind::kDram},
                              {.access = Access::kAll});
    std::printf("%s %llu\n", agent.address().c_str(),
                static_cast<unsigned long long>(reinterpret_cast<uint64_t>(memory)));
    std::fflush(stdout);
    std::atomic<bool> stop{false};
    std::thread echo([&] {
      Notice notice;
      while (!stop.load()) {
        if (agent.wait(50ms) != Status::kOk || agent.receive(notice) != Status::kOk) continue;
        unsigned long long offset = 0;
        unsigned long long bytes = 0;
        const std::string text(notice.text());
        // It may end by that; no library can write a file about it in this folder.
        if (std::sscanf(text.c_str(), "unmap %llu %llu", &offset, &bytes) == 2 && chdir("/proc") == 0)
          munmap(memory + offset, bytes);
        if (auto peer = agent.find_peer(std::string(notice.peer_incarnation())))
          (void)peer->send(notice.text());
      }
    });
    char byte = 0;
    while (read(0, &byte, 1) == 1) {
    }
    stop = true;
    echo.join();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "victim: %s\n", error.what());
    return 1;
  }
}

}  // namespace towline::faults

#include "poster.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>

#include "towline/storage.hpp"
#include "towline/towline.hpp"

namespace towline::faults {

using namespace std::chrono_literals;

Poster::Poster(const PosterOptions& options) {
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = 3; fd < 1024; ++fd) close(fd);
  const char* const arguments[] = {"poster",
                                   "--poster",
                                   options.folder.c_str(),
                                   options.config.c_str(),
                                   options.address.c_str(),
                                   options.reads ? "reads" : "writes",
                                   nullptr};
  execv("/proc/self/exe", const_cast<char* const*>(arguments));
  _exit(127);
}

Poster::~Poster() { kill_hard(); }

void Poster::signal(int number) const { kill(pid_, number); }

void Poster::kill_hard() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int run_poster(int argc, char** argv) {
  if (argc != 6) return 2;
  try {
    constexpr uint64_t kBlock = 1 << 18;
    const Agent agent("poster", {.listen = "none", .backends = "tcp,posix", .config = argv[3]});
    const Peer peer = agent.connect(argv[4]);
    const auto region = peer.regions().front();
    const Region file = agent.register_storage(std::string("file:") + argv[2] + "/posted",
                                               {.create = true, .bytes = region.bytes});
    const BlockList here = agent.block_list(file.blocks(0, kBlock).repeat(region.bytes / kBlock, kBlock));
    const BlockList there = peer.block_list(Blocks::at(region.address, kBlock, static_cast<Kind>(region.kind))
                                                .repeat(region.bytes / kBlock, kBlock));
    const bool reads = std::string(argv[5]) == "reads";
    const Transfer move = reads ? agent.transfer(there, here) : agent.transfer(here, there);
    // Until it is killed. Its peer may be away.
    for (;;) {
      if (move.post() == Status::kInProgress) (void)move.wait(10s);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "poster: %s\n", error.what());
    return 1;
  }
}

}  // namespace towline::faults

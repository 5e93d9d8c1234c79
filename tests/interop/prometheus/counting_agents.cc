// Two agents that have moved a known amount, and wait to be looked at. Prints where the first serves its
// counters.
#include <towline/telemetry.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <towline/towline.hpp>

namespace {

using namespace towline;  // NOLINT: one file

constexpr int kTransfers = 5;
constexpr uint64_t kBytes = 8 * 4096;

void run(const std::string& address) {
  const Agent near(
      "near \"quoted\" \\ back",
      {.listen = "none", .backends = "tcp", .config = "[telemetry]\nprometheus = \"" + address + "\"\n"});
  const Agent far("far", {.listen = "127.0.0.1:0", .backends = "tcp"});
  const Memory mine(kBytes);
  const Memory theirs(kBytes);
  const Region near_region = near.register_memory(dram(mine), {.access = Access::kAll});
  const Region far_region = far.register_memory(dram(theirs), {.access = Access::kAll});
  const auto blob = far.metadata();
  const Peer peer = near.add_peer(blob);
  const Transfer move = near.transfer(near.block_list(blocks_of(mine.data(), kBytes, 4096)),
                                      peer.block_list(blocks_of(theirs.data(), kBytes, 4096)));
  for (int i = 0; i < kTransfers; ++i) {
    Status status = move.post();
    if (status == Status::kInProgress) status = move.wait();
    if (status != Status::kOk) throw Error{status, "a transfer failed"};
  }
  // A second server of the same agent, at a port of its own.
  towline_exporter_t* exporter = nullptr;
  detail::check(towline_exporter_start(near.native(), "127.0.0.1:0", &exporter));
  std::printf("%s\n", towline_exporter_address(exporter));
  std::fflush(stdout);
  char byte = 0;
  while (read(0, &byte, 1) == 1) {
  }
  towline_exporter_stop(exporter);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    run(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "counting_agents: %s\n", error.what());
    return 1;
  }
}

// Measures how long a TransferEngine takes before the first byte moves: registering an arena's tensors, and meeting many peers.
//
//   towline_bench_fabric_startup [tensors] [hosts] [peers]
//
// Tensors: 4 KiB each, one after the other in an arena that is registered first, over two loopback rails. Hosts: as many
// engines as they connect to, in this process on one thread, over loopback; each signals each, and the time ends when
// all have counted all. Peers: known to one engine, and not connected; what one costs, and what they cost an engine that
// has something under way. The times are the clock's; processor times stand beside them, for a machine that others use.
#include <fmt/format.h>

#include <malloc.h>
#include <time.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "fabric/loopback/shared.h"
#include "fabric/test_support.h"
#include "fabric/transfer_engine.h"

namespace {

using namespace towline;
using namespace towline::fabric;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

// Memory that the program has asked for, however the C library got it.
std::size_t allocated() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

void tensors(std::size_t count) {
  constexpr std::size_t kTensor = 4096;
  std::vector<std::unique_ptr<Domain>> rails;
  for (int i = 0; i < 2; ++i) rails.push_back(make_shared_loopback("startup"));
  std::vector<uint8_t> memory(count * kTensor);
  TransferEngine engine{std::move(rails), {}};
  std::vector<const LocalMemory*> registered;
  registered.reserve(count);
  const auto begin = std::chrono::steady_clock::now();
  const LocalMemory* arena = engine.register_memory({memory.data(), memory.size(), true, true});
  for (std::size_t i = 0; i < count; ++i)
    registered.push_back(engine.register_memory({memory.data() + i * kTensor, kTensor, true, true}));
  const double took = seconds_since(begin);
  const auto ending = std::chrono::steady_clock::now();
  for (const LocalMemory* one : registered) engine.deregister_memory(one);
  engine.deregister_memory(arena);
  fmt::print("{:>7} tensors of an arena: registered in {:.1f} ms, deregistered in {:.1f} ms\n", count,
             took * 1e3, seconds_since(ending) * 1e3);
}

void peers(uint32_t hosts) {
  testing::World world;
  EngineOptions options;
  options.max_connections = hosts + 1;
  options.credits = 4;
  LoopbackOptions port;
  port.traits.receive_depth = 4;
  for (uint32_t i = 0; i < hosts; ++i) world.add_host(1, port, options);
  const std::size_t held = allocated();
  const double used = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& host : world.hosts) {
    for (const auto& [index, peer] : host->peers) {
      TransferRequest request;
      request.peer = peer;
      request.op = TransferOp::kNone;
      request.immediate = 1;
      request.count = 1;
      request.cookie = index + 1;
      if (host->engine->submit(request) != Status::kInProgress) std::abort();
    }
  }
  const auto all_met = [&] {
    for (const auto& host : world.hosts)
      if (host->counts[1] != hosts - 1) return false;
    return true;
  };
  if (!world.until(all_met, 60 * kSecondNs, 50'000)) std::abort();
  const double connections = static_cast<double>(hosts) * (hosts - 1);
  fmt::print(
      "{:>7} engines connected to each other ({:.0f} connections) in {:.2f} s ({:.2f} s of the processor), "
      "{:.1f} KiB a connection, both ends\n",
      hosts, connections, seconds_since(begin), processor_seconds() - used,
      static_cast<double>(allocated() - held) / connections / 1024);
}

// Measures the cost of peers that are known and never used.
void known(uint32_t count) {
  testing::World world;
  world.add_host(1);
  world.add_host(1);
  Engine& engine = *world.hosts[0]->engine;
  EngineAddress address = world.hosts[1]->engine->address();
  const auto turns = [&] {  // one a millisecond, with a transfer under way to a host that does not answer
    constexpr int kTurns = 1'000;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTurns; ++i) engine.progress(world.now_ns += kMillisecondNs);
    return seconds_since(begin) / kTurns * 1e6;
  };
  TransferRequest request;
  request.peer = world.hosts[0]->peers[1];
  request.immediate = request.count = 1;
  request.cookie = 1;
  if (engine.submit(request) != Status::kInProgress) std::abort();
  const double alone = turns();
  const std::size_t held = allocated();
  const auto begin = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < count; ++i) {
    address.engine = Id::random();
    (void)engine.add_peer(address);
  }
  const double took = seconds_since(begin);
  const std::size_t grown = allocated() - held;
  fmt::print(
      "{:>7} peers known: {:.1f} ms to add, {} bytes each; a turn that looks at the clock {:.1f} us, {:.1f} "
      "us "
      "without them\n",
      count, took * 1e3, grown / count, turns(), alone);
}

}  // namespace

int main(int argc, char** argv) {
  tensors(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100'000);
  peers(argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 256);
  known(argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 10'000);
  return 0;
}

// Measures how long a TransferEngine takes before the first byte moves: registering an arena's tensors, and meeting many peers.
//
//   towline_bench_fabric_startup [tensors] [hosts]
//
// Tensors: 4 KiB each, one after the other in an arena that is registered first, over two loopback rails. Hosts: as many
// engines as they connect to, in this process on one thread, over loopback; each signals each, and the time ends when
// all have counted all.
#include <fmt/format.h>

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
  fmt::print("{:>7} engines connected to each other ({} connections) in {:.2f} s\n", hosts,
             uint64_t{hosts} * (hosts - 1), seconds_since(begin));
}

}  // namespace

int main(int argc, char** argv) {
  tensors(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100'000);
  peers(argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 256);
  return 0;
}

// Measures the cost of the fabric's engine without a NIC: pages over domains that complete at once. Two engines of one
// process are connected; one writes lists of pages, and the time of submit() and progress() is all there is.
//
//   towline_bench_fabric [runs]
//
// Then what share of their rates' sum several rails reach: on loopback rails held to fixed rates, by the virtual clock.
//
// Prints nanoseconds per page (median, least and most of the runs) and the allocations of a run after the first.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <vector>

#include "../overhead/allocations.h"
#include "base/random.h"
#include "fabric/engine.h"
#include "fabric/null/null_domain.h"
#include "fabric/test_support.h"

namespace {

using namespace towline;
using namespace towline::fabric;

struct Host final : EngineHost {
  void complete(uint64_t, const TransferResult& result) noexcept override {
    if (result.status != Status::kOk) std::abort();
    ++completed;
  }
  void fenced(uint64_t, uint32_t) noexcept override {}
  void counted(Handle, uint32_t, uint32_t) noexcept override {}
  void received(Handle, std::span<const uint8_t>) noexcept override {}
  void lost(Handle, Status, std::string_view) noexcept override { std::abort(); }
  void send_control(Handle, std::span<const uint8_t> message) noexcept override {
    letters.emplace_back(message.begin(), message.end());
  }

  std::deque<std::vector<uint8_t>> letters;
  uint64_t completed = 0;
};

struct Pages {
  const uint32_t* local = nullptr;
  const uint32_t* remote = nullptr;
  std::size_t count = 0;
  std::size_t given = 0;
  uint64_t local_base = 0;
  uint64_t remote_base = 0;
  uint32_t bytes = 0;

  static std::size_t next(void* context, towline_segment* out, std::size_t capacity) {
    Pages& pages = *static_cast<Pages*>(context);
    const std::size_t count = std::min(capacity, pages.count - pages.given);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t page = pages.given + i;
      out[i] = {pages.local_base + uint64_t{pages.local[page]} * pages.bytes,
                pages.remote_base + uint64_t{pages.remote[page]} * pages.bytes, pages.bytes, 0, 0};
    }
    pages.given += count;
    return count;
  }
};

std::vector<std::unique_ptr<Domain>> domains(uint32_t rails, bool in_order) {
  std::vector<std::unique_ptr<Domain>> made;
  DomainTraits traits;
  traits.window_bytes = 64 << 20;
  traits.completes_in_order = in_order;
  for (uint32_t i = 0; i < rails; ++i) made.push_back(make_null_domain(traits));
  return made;
}

struct Case {
  const char* name;
  uint32_t rails;
  std::size_t pages;      // of a transfer
  std::size_t transfers;  // of a run
  bool counts;
  bool in_order;
};

void measure(const Case& what, int runs) {
  Host hosts[2];
  Engine one{{}, domains(what.rails, what.in_order), hosts[0]};
  Engine two{{}, domains(what.rails, what.in_order), hosts[1]};
  const Handle peer_of_one = one.add_peer(two.address());
  const Handle peer_of_two = two.add_peer(one.address());
  constexpr uint64_t kSpan = uint64_t{1} << 36;  // never touched
  constexpr uint32_t kPageBytes = 4096;
  const LocalMemory memory = one.register_memory({reinterpret_cast<void*>(kSpan), kSpan, true, true});
  const RemoteMemory theirs = Engine::describe(memory);
  const LocalMemory* local = &memory;
  const RemoteMemory* remote = &theirs;
  Random random{1};
  std::vector<uint32_t> indices(2 * what.pages);
  for (uint32_t& index : indices) index = static_cast<uint32_t>(random.below(kSpan / kPageBytes));

  const auto run = [&] {
    const uint64_t until = hosts[0].completed + what.transfers;
    std::size_t posted = 0;
    std::vector<Pages>* sources = nullptr;
    static std::vector<Pages> storage;
    storage.resize(what.transfers);
    sources = &storage;
    while (hosts[0].completed != until) {
      while (posted < what.transfers) {
        Pages& pages = (*sources)[posted];
        pages = {indices.data(), indices.data() + what.pages, what.pages, 0, kSpan, kSpan, kPageBytes};
        TransferRequest request;
        request.peer = peer_of_one;
        request.op = TransferOp::kWrite;
        request.segments = {Pages::next, &pages};
        request.local = &local;
        request.remote = &remote;
        request.bytes = what.pages * kPageBytes;
        if (one.submit(request) != Status::kInProgress) break;
        ++posted;
      }
      one.progress(monotonic_now_ns());
      while (!hosts[0].letters.empty()) {
        two.on_control(peer_of_two, hosts[0].letters.front());
        hosts[0].letters.pop_front();
      }
      while (!hosts[1].letters.empty()) {
        one.on_control(peer_of_one, hosts[1].letters.front());
        hosts[1].letters.pop_front();
      }
    }
  };
  run();  // connects
  run();
  std::vector<double> ns;
  const uint64_t before = bench::allocations().calls;
  uint64_t calls = 0;
  for (int i = 0; i < runs; ++i) {
    const uint64_t start = monotonic_now_ns();
    const uint64_t calls_before = bench::allocations().calls;
    run();
    calls += bench::allocations().calls - calls_before;
    ns.push_back(static_cast<double>(monotonic_now_ns() - start) /
                 static_cast<double>(what.pages * what.transfers));
  }
  (void)before;
  std::sort(ns.begin(), ns.end());
  fmt::print("{:<44} {:>8.1f} {:>8.1f} {:>8.1f} {:>12}\n", what.name, ns[ns.size() / 2], ns.front(),
             ns.back(), calls);
  one.deregister_memory(memory);
}

// One WRITE of 64 KiB x 1,024; rates in GB/s. `kill`: the rail that dies when a third has moved; -1: none.
void measure_rails(const char* name, const std::vector<double>& rates, int kill) {
  using fabric::testing::Buffers;
  using fabric::testing::World;
  World world;
  const auto count = static_cast<uint32_t>(rates.size());
  for (int host = 0; host < 2; ++host) {
    LoopbackOptions port;
    port.traits.window_bytes = 2 << 20;  // as of verbs
    world.add_host(count, port);
  }
  for (uint32_t rail = 0; rail < 2 * count; ++rail)
    world.fabric.set_rate(rail, static_cast<uint64_t>(rates[rail % count] * 1e9));
  constexpr uint64_t kPiece = 64 << 10;
  Buffers buffers(world, 1'024 * kPiece);
  const auto& outcomes = world.hosts[0]->outcomes;
  const auto run = [&](uint64_t cookie) {
    const uint64_t start_ns = world.now_ns;
    if (world.hosts[0]->engine->submit(buffers.request(TransferOp::kWrite, kPiece, cookie)) !=
        Status::kInProgress)
      std::abort();
    bool killed = kill < 0 || cookie == 1;
    const auto done = [&] {
      if (!killed && buffers.given >= buffers.source.size() / 3) {
        world.fabric.kill(static_cast<uint32_t>(kill));
        killed = true;
      }
      return outcomes.contains(cookie);
    };
    if (!world.until(done) || outcomes.at(cookie).result.status != Status::kOk) std::abort();
    return static_cast<double>(world.now_ns - start_ns);
  };
  run(1);  // connects
  std::fill(buffers.target.begin(), buffers.target.end(), uint8_t{0});
  const double ns = run(2);
  if (buffers.target != buffers.source) std::abort();
  double sum = 0;
  for (const double rate : rates) sum += rate;
  // If a rail dies when a third has moved, two thirds go over the others.
  if (kill >= 0) sum = 3 / (1 / sum + 2 / (sum - rates[static_cast<std::size_t>(kill)]));
  const double reached = static_cast<double>(buffers.source.size()) / ns;
  fmt::print("{:<44} {:>8.2f} {:>8.2f} {:>8.2f}", name, sum, reached, reached / sum);
  if (kill >= 0) {
    const RailCounters died = world.hosts[0]->engine->counters(static_cast<std::size_t>(kill));
    fmt::print("   {} requests of the rail that died posted again, {:.2f} ms after it broke", died.retried,
               static_cast<double>(died.longest_pause_ns) / 1e6);
  }
  fmt::print("\n");
}

}  // namespace

int main(int count, char** arguments) {
  const int runs = count > 1 ? std::atoi(arguments[1]) : 21;
  fmt::print("{:<44} {:>8} {:>8} {:>8} {:>12}\n", "ns a page of 4 KiB", "median", "least", "most",
             "allocations");
  constexpr Case kCases[] = {
      {"1 rail, 65,536 pages", 1, 65'536, 4, false, true},
      {"4 rails, 65,536 pages", 4, 65'536, 4, false, true},
      {"1 rail, 65,536 pages, out of order", 1, 65'536, 4, false, false},
      {"1 rail, 64 pages a transfer", 1, 64, 4'096, false, true},
      {"1 rail, 1 page a transfer", 1, 1, 65'536, false, true},
  };
  for (const Case& what : kCases) measure(what, runs);
  fmt::print("\n{:<44} {:>8} {:>8} {:>8}\n", "64 KiB x 1,024 over rails of fixed rates, GB/s", "sum",
             "reached", "share");
  measure_rails("1 rail of 10", {10}, -1);
  measure_rails("4 rails of 10", {10, 10, 10, 10}, -1);
  measure_rails("3 rails of 10, one of 5", {10, 10, 10, 5}, -1);
  measure_rails("4 rails of 10, one dies under way", {10, 10, 10, 10}, 1);
  return 0;
}

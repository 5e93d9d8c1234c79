// How long a latency post of 4 KiB takes alone, and behind bulk on the same path. Two agents of one process, each with
// a worker of its own.
//
//   towline_bench_priorities [backend [config [bulk bytes [rounds]]]]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/statistics.h"
#include "towline/towline.hpp"

namespace {

using namespace std::chrono_literals;
using towline::Status;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kPageBytes = 4096;
constexpr int kPostsAlone = 500;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double post_once(const towline::Plan& plan, towline::Priority priority) {
  const auto start = Clock::now();
  const towline::Post post = plan.post({.priority = priority});
  if (post.wait(30s) != Status::kOk) {
    std::fprintf(stderr, "a post failed: %s\n", post.error().c_str());
    std::exit(1);
  }
  return microseconds_since(start);
}

struct Both {
  std::vector<double> alone;
  std::vector<double> behind;
  std::vector<double> bulk_gbps;
  std::vector<double> bulk_alone_gbps;
};

double bulk_gbps(uint64_t bytes, Clock::time_point start) {
  return static_cast<double>(bytes) / microseconds_since(start) / 1000;
}

void round(Both& both, const towline::Plan& bulk, uint64_t bulk_bytes, const towline::Plan& page) {
  for (int i = 0; i < kPostsAlone; ++i) both.alone.push_back(post_once(page, towline::Priority::latency));
  auto start = Clock::now();
  if (bulk.post().wait(120s) != Status::kOk) std::exit(1);
  both.bulk_alone_gbps.push_back(bulk_gbps(bulk_bytes, start));
  start = Clock::now();
  const towline::Post moving = bulk.post();
  while (moving.poll() == Status::kInProgress)
    both.behind.push_back(post_once(page, towline::Priority::latency));
  if (moving.wait(120s) != Status::kOk) std::exit(1);
  both.bulk_gbps.push_back(bulk_gbps(bulk_bytes, start));
}

void report(const char* name, const Both& both) {
  const double alone = bench::spread_of(both.alone).median;
  const double behind = bench::spread_of(both.behind).median;
  std::printf("| %s | %.1f | %.1f | %.1f | %.1f | %zu | %.2f | %.2f |\n", name, alone, behind, behind / alone,
              bench::percentile(both.behind, 0.9), both.behind.size(),
              bench::spread_of(both.bulk_alone_gbps).median, bench::spread_of(both.bulk_gbps).median);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string backend = count > 1 ? arguments[1] : "tcp";
  const std::string config = count > 2 ? arguments[2] : "";
  const uint64_t bulk_bytes = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : uint64_t{1} << 30;
  const int rounds = count > 4 ? std::atoi(arguments[4]) : 3;
  try {
    const towline::AgentOptions options{.listen = "127.0.0.1:0", .backends = backend, .config = config};
    const towline::Memory here{bulk_bytes + kPageBytes};
    const towline::Memory there{bulk_bytes + kPageBytes};
    const towline::Agent left{"left", options};
    const towline::Agent right{"right", options};
    const auto mine = left.register_memory(towline::dram(here), {.access = towline::Access::kAll});
    const auto theirs = right.register_memory(towline::dram(there), {.access = towline::Access::kAll});
    const auto peer = left.connect(right.address());
    const auto blocks = [](const towline::Memory& memory, uint64_t offset, uint64_t bytes) {
      return std::vector{towline::Blocks::at(reinterpret_cast<uint64_t>(memory.data()) + offset, bytes)};
    };
    const auto my_bulk = left.block_list(blocks(here, 0, bulk_bytes));
    const auto my_page = left.block_list(blocks(here, bulk_bytes, kPageBytes));
    const auto their_bulk = peer.block_list(blocks(there, 0, bulk_bytes));
    const auto their_page = peer.block_list(blocks(there, bulk_bytes, kPageBytes));
    std::printf(
        "| %s %s | alone us | behind us | ratio | p90 behind | posts | bulk alone GB/s | bulk GB/s |\n"
        "|---|---|---|---|---|---|---|---|\n",
        backend.c_str(), config.c_str());
    for (const bool write : {true, false}) {
      const auto bulk = write ? left.plan(my_bulk, their_bulk) : left.plan(their_bulk, my_bulk);
      const auto page = write ? left.plan(my_page, their_page) : left.plan(their_page, my_page);
      Both both;
      for (int i = 0; i < rounds; ++i) round(both, bulk, bulk_bytes, page);
      report(write ? "WRITE" : "READ", both);
    }
  } catch (const towline::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

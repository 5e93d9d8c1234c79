#include "all_to_all.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gpu.h"
#include "support/statistics.h"
#include "support/table.h"
#include "towline/towline.hpp"

namespace bench::gpu {

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One GPU's side. Its memory is cut into as many parts as there are GPUs: part 0 is what it sends, each other
// one is for what one of the others writes.
struct Side {
  int gpu = 0;
  uint64_t address = 0;
  std::unique_ptr<towline::Agent> agent;
  std::unique_ptr<towline::Region> region;
  std::vector<std::unique_ptr<towline::Peer>> peers;
  std::vector<towline::Transfer> transfers;
  std::vector<std::unique_ptr<PageList>> bare;
};

std::vector<uint32_t> shuffled(uint64_t count, uint32_t seed) {
  std::vector<uint32_t> picks(count);
  std::iota(picks.begin(), picks.end(), 0u);
  std::shuffle(picks.begin(), picks.end(), std::mt19937(seed));
  return picks;
}

void open(Side& side, const AllToAll& options, int gpus) {
  use(side.gpu);
  for (int other = 0; other < gpus; ++other)
    if (other != side.gpu) reach(other);
  const uint64_t bytes = options.page * options.pages * static_cast<uint64_t>(gpus);
  side.address = allocate(bytes);
  stamp(side.address, bytes, static_cast<uint64_t>(side.gpu) + 1);
  towline::AgentOptions agent_options;
  agent_options.listen = "none";
  agent_options.backends = "cuda";
  agent_options.config =
      fmt::format("plugins = [\"{}\"]\n[tuning.cuda]\nblocks = \"{}\"\n", options.plugin, options.blocks);
  side.agent = std::make_unique<towline::Agent>(fmt::format("gpu-{}", side.gpu), agent_options);
  side.region = std::make_unique<towline::Region>(
      side.agent->register_memory({.address = reinterpret_cast<void*>(side.address),
                                   .bytes = bytes,
                                   .kind = towline::Kind::kVram,
                                   .device = static_cast<uint64_t>(side.gpu)},
                                  {.access = towline::Access::kAll}));
}

void connect(Side& side, const std::vector<Side>& sides, const AllToAll& options) {
  use(side.gpu);
  const auto blocks = [&](uint64_t address, int gpu) {
    return towline::Blocks::at(address, options.page, towline::Kind::kVram, static_cast<uint64_t>(gpu))
        .repeat(options.pages, options.page);
  };
  for (const Side& other : sides) {
    if (other.gpu == side.gpu) continue;
    // The part of the other's memory that is for us: parts are counted past its own.
    const auto part = static_cast<uint64_t>(side.gpu < other.gpu ? side.gpu + 1 : side.gpu);
    const uint64_t there = other.address + part * options.page * options.pages;
    const auto from = shuffled(options.pages, static_cast<uint32_t>(side.gpu));
    const auto to = shuffled(options.pages, static_cast<uint32_t>(other.gpu + 100));
    std::vector<Pair> pairs(options.pages);
    for (uint64_t i = 0; i < options.pages; ++i)
      pairs[i] = {there + to[i] * options.page, side.address + from[i] * options.page};
    side.bare.push_back(std::make_unique<PageList>(pairs, options.page));
    side.peers.push_back(std::make_unique<towline::Peer>(side.agent->add_peer(other.agent->metadata())));
    side.transfers.push_back(
        side.agent->transfer(side.agent->block_list(blocks(side.address, side.gpu))[from],
                             side.peers.back()->block_list(blocks(there, other.gpu))[to]));
  }
}

void move(const Side& side) {
  std::vector<towline::Status> status;
  for (const towline::Transfer& transfer : side.transfers) status.push_back(transfer.post());
  for (bool busy = true; busy;) {
    busy = false;
    for (size_t i = 0; i < status.size(); ++i) {
      if (status[i] == towline::Status::kInProgress) status[i] = side.transfers[i].poll();
      busy = busy || status[i] == towline::Status::kInProgress;
    }
  }
  for (const towline::Status one : status)
    if (one != towline::Status::kOk) throw std::runtime_error(std::string(towline::status_name(one)));
}

}  // namespace

bool run_all_to_all(const AllToAll& options) {
  const int gpus = count();
  std::vector<Side> sides(static_cast<size_t>(gpus));
  for (int gpu = 0; gpu < gpus; ++gpu) {
    sides[static_cast<size_t>(gpu)].gpu = gpu;
    open(sides[static_cast<size_t>(gpu)], options, gpus);
  }
  for (Side& side : sides) connect(side, sides, options);
  std::barrier start(gpus);
  std::atomic<uint64_t> wrong{0};
  std::vector<double> bare_s;
  std::vector<double> ours_s;
  std::vector<std::thread> threads;
  for (Side& side : sides) {
    threads.emplace_back([&] {
      use(side.gpu);
      for (int round = -2; round < options.rounds; ++round) {
        start.arrive_and_wait();
        const double first = now_s();
        for (auto& list : side.bare) list->begin(options.blocks);
        for (auto& list : side.bare) list->wait();
        start.arrive_and_wait();
        const double second = now_s();
        move(side);
        start.arrive_and_wait();
        const double last = now_s();
        if (side.gpu != 0 || round < 0) continue;
        bare_s.push_back(second - first);
        ours_s.push_back(last - second);
      }
      for (auto& list : side.bare) wrong += list->differing_words();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double bytes = static_cast<double>(options.page * options.pages) * (gpus - 1);  // that one GPU sends
  const Spread bare = spread_of(bare_s);
  const Spread ours = spread_of(ours_s);
  std::cout << render({{"transfer", "GB/s out of each GPU", "spread", "bare GB/s", "of bare", "pages"},
                       {fmt::format("{} GPUs, all to all, {} KiB x {} each", gpus, options.page >> 10,
                                    options.pages),
                        fmt::format("{:.1f}", bytes / ours.median / 1e9),
                        fmt::format("{:.1f}-{:.1f}", bytes / ours.max / 1e9, bytes / ours.min / 1e9),
                        fmt::format("{:.1f}", bytes / bare.median / 1e9),
                        fmt::format("{:.3f}", bare.median / ours.median), wrong == 0 ? "right" : "WRONG"}})
            << std::endl;
  return wrong == 0;
}

}  // namespace bench::gpu

#include "together.h"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gpu.h"
#include "ranks.h"
#include "support/statistics.h"
#include "support/table.h"
#include "towline/towline.hpp"

namespace bench::gpu {

namespace {

constexpr uint64_t kPage = 32 << 10;
constexpr uint64_t kPages = 4096;

// The parts that move bytes: a bit each.
enum Part : unsigned { kSmall = 1, kLarge = 2, kMoves = 4 };
constexpr unsigned kPhases[] = {kSmall, kLarge, kMoves, kSmall | kLarge, kSmall | kLarge | kMoves};

struct Work {
  const char* name;
  Part part;
  uint64_t bytes;
  int count;    // operations of a graph
  int replays;  // for each round: about as long for either, when both run
};
constexpr Work kWorks[] = {{"small", kSmall, 64 << 10, 200, 5}, {"large", kLarge, 64 << 20, 20, 2}};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Run {
  const TogetherOptions& options;
  int size;
  RankStore stores[std::size(kWorks)] = {};
  Meeting meet{size * 3};
  std::atomic<int> running{0};  // threads of collectives, in a phase
  std::atomic<uint64_t> wrong{0};
  std::mutex mutex = {};
  std::vector<double> times[std::size(kPhases)][3] = {};  // of all ranks, seconds

  void took(size_t phase, size_t which, double seconds) {
    const std::lock_guard lock(mutex);
    times[phase][which].push_back(seconds);
  }
};

// One rank's side of one communicator: all_reduces in a graph, on a stream of this thread's.
void reduce(Run& run, int rank, size_t which) {
  use(rank);
  const Work& work = kWorks[which];
  towline_communicator_t* const world = communicator(run.stores[which], work.name, rank, run.size, "", rank);
  const uint64_t in = allocate(work.bytes);
  const uint64_t out = allocate(work.bytes);
  number(in, work.bytes / 4, rank);
  fill(out, work.bytes, 0xff);
  run.meet();  // what others set up would spoil a graph that is being recorded
  Recording graph([&](void* stream) {
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    call.count = work.bytes / 4;
    call.input = reinterpret_cast<void*>(in);
    call.output = reinterpret_cast<void*>(out);
    for (int i = 0; i < work.count; ++i)
      need(towline_collective_issue(world, &call, nullptr, stream), work.name);
  });
  run.meet();  // nothing is allocated after this
  for (size_t phase = 0; phase < std::size(kPhases); ++phase) {
    const bool mine = (kPhases[phase] & work.part) != 0;
    if (mine) ++run.running;
    run.meet();
    for (int round = 0; mine && round < run.options.rounds; ++round) {
      const double begun = now_s();
      for (int i = 0; i < work.replays; ++i) (void)graph.replay();
      run.took(phase, which, (now_s() - begun) / (work.replays * work.count));
    }
    if (mine) --run.running;
    run.meet();
  }
  run.wrong += wrong_numbers(out, work.bytes / 4, Collective::kAllReduce, rank, run.size);
  need(towline_communicator_error(world, nullptr, 0, nullptr), "the communicator broke");
  run.meet();
  towline_communicator_destroy(world);
}

// Pages from this GPU to the next.
void move_pages(Run& run, int rank) {
  const int next = (rank + 1) % run.size;
  const uint64_t bytes = kPage * kPages;
  towline::AgentOptions options;
  options.listen = "none";
  options.backends = "cuda";
  options.config = fmt::format("plugins = [\"{}\"]\n", run.options.plugin);
  towline::Agent near(fmt::format("near-{}", rank), options);
  towline::Agent far(fmt::format("far-{}", rank), options);
  const auto registered = [&](towline::Agent& agent, int gpu) {
    use(gpu);
    const uint64_t address = allocate(bytes);
    stamp(address, bytes, static_cast<uint64_t>(gpu + 1));
    return std::pair{address, agent.register_memory({.address = reinterpret_cast<void*>(address),
                                                     .bytes = bytes,
                                                     .kind = towline::Kind::kVram,
                                                     .device = static_cast<uint64_t>(gpu)},
                                                    {.access = towline::Access::kAll})};
  };
  const auto there = registered(far, next);
  const auto here = registered(near, rank);
  reach(next);
  std::vector<uint32_t> picks(kPages);
  std::iota(picks.begin(), picks.end(), 0u);
  std::shuffle(picks.begin(), picks.end(), std::mt19937(static_cast<uint32_t>(rank)));
  const std::vector<uint32_t> places(picks.rbegin(), picks.rend());
  std::vector<Pair> pairs(kPages);
  for (uint64_t i = 0; i < kPages; ++i)
    pairs[i] = {there.first + places[i] * kPage, here.first + picks[i] * kPage};
  PageList list(pairs, kPage);
  const auto blocks = [&](uint64_t address, int gpu) {
    return towline::Blocks::at(address, kPage, towline::Kind::kVram, static_cast<uint64_t>(gpu))
        .repeat(kPages, kPage);
  };
  towline::Peer peer = near.add_peer(far.metadata());
  const towline::Transfer move = near.transfer(near.block_list(blocks(here.first, rank))[picks],
                                               peer.block_list(blocks(there.first, next))[places]);
  run.meet();
  run.meet();  // collectives are recorded in between
  for (size_t phase = 0; phase < std::size(kPhases); ++phase) {
    const bool mine = (kPhases[phase] & kMoves) != 0;
    run.meet();
    for (int turn = 0; mine && (turn < run.options.rounds || run.running != 0); ++turn) {
      const double begun = now_s();
      towline::Status status = move.post();
      while (status == towline::Status::kInProgress) status = move.poll();
      if (status != towline::Status::kOk) throw std::runtime_error(std::string(towline::last_error()));
      run.took(phase, 2, now_s() - begun);
    }
    run.meet();
  }
  run.wrong += list.differing_words();
  run.meet();
}

}  // namespace

bool measure_together(const TogetherOptions& options) {
  if (!options.collectives_plugin.empty())
    need(towline_collective_backend_load("gpu", options.collectives_plugin.c_str()), "backend");
  Run run{.options = options, .size = count()};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < run.size; ++rank)
    for (size_t which = 0; which < 3; ++which)
      threads.emplace_back([&run, rank, which] {
        try {
          which < 2 ? reduce(run, rank, which) : move_pages(run, rank);
        } catch (const std::exception& error) {  // the others wait for this one
          std::cerr << fmt::format("rank {}: {}\n", rank, error.what()) << std::flush;
          _exit(1);
        }
      });
  for (std::thread& thread : threads) thread.join();
  Rows rows{{"together", "all_reduce 64 KiB, us", "all_reduce 64 MiB, us", "pages out of each GPU, GB/s"}};
  for (size_t phase = 0; phase < std::size(kPhases); ++phase) {
    const unsigned parts = kPhases[phase];
    auto& row = rows.emplace_back();
    row.push_back(fmt::format("{}{}{}", parts & kSmall ? "small " : "", parts & kLarge ? "large " : "",
                              parts & kMoves ? "pages" : ""));
    for (const auto& times : run.times[phase]) {
      const Spread spread = spread_of(times);
      const bool pages = row.size() == 3;
      const double bytes = static_cast<double>(kPage * kPages) / 1e9;
      row.push_back(times.empty() ? ""
                    : pages ? fmt::format("{:.1f} [{:.1f} {:.1f}]", bytes / spread.median, bytes / spread.max,
                                          bytes / spread.min)
                            : fmt::format("{:.1f} [{:.1f} {:.1f}]", spread.median * 1e6, spread.min * 1e6,
                                          spread.max * 1e6));
    }
  }
  std::cout << fmt::format("{} x {}, two communicators and pages, {} rounds: {}\n\n", run.size, name(0),
                           options.rounds, run.wrong == 0 ? "right" : "WRONG")
            << render(rows) << std::endl;
  return run.wrong == 0;
}

}  // namespace bench::gpu

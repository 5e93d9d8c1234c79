// All-reduces of ranks that share one GPU: threads of this process with streams of their own, each replaying a graph of
// many operations. Prints microseconds an operation, the cost of issuing one, and the memory traffic that the largest
// reach, beside a copy on the same GPU.
//
//   collectives_on_gpu [PLUGIN [norms | replays]]     a libtowline_collectives_gpu.so; without it the one beside the library.
//                                           norms: all_reduces of rows beside those fused with RMSNorm
//                                           replays: of graphs, beside those that are ordered with calls in other streams
#include <dlfcn.h>
#include <fmt/format.h>
#include <towline/collectives_gpu.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/gpu_driver.h"
#include "support/rank_store.h"

namespace {

using bench::need;
using Pointer = unsigned long long;
using Clock = std::chrono::steady_clock;

template <class... Arguments>
void driver(const char* name, Arguments... arguments) {
  auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(bench::driver_library(), name));
  const int code = function == nullptr ? -1 : function(arguments...);
  if (code == 0) return;
  fmt::print(stderr, "{}: {}\n", name, code);
  std::exit(1);
}

double microseconds(Clock::time_point began) {
  return std::chrono::duration<double, std::micro>(Clock::now() - began).count();
}

double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<long>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

struct Outcome {
  double graph_us = 0;
  double issue_us = 0;
  bool right = true;
};

constexpr uint64_t kSizes[] = {256,       4 << 10, 16 << 10, 32 << 10, 64 << 10,
                               256 << 10, 1 << 20, 4 << 20,  16 << 20, 64 << 20};

void run_rank(int rank, int size, const char* backend, const char* config, bench::RankStore& store,
              std::barrier<>& together, std::vector<Outcome>& outcomes) {
  void* context = nullptr;
  driver("cuDevicePrimaryCtxRetain", &context, 0);
  driver("cuCtxSetCurrent", context);
  const auto table = store.table();
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.backend = backend;
  options.rank = rank;
  options.size = size;
  options.store = &table;
  options.config = config;
  options.timeout_ns = 20'000'000'000;
  towline_communicator_t* world = nullptr;
  need(towline_communicator_create(&options, &world), "communicator");
  void* stream = nullptr;
  driver("cuStreamCreate", &stream, 1u);
  const uint64_t most = std::end(kSizes)[-1];
  Pointer in = 0;
  Pointer out = 0;
  driver("cuMemAlloc_v2", &in, size_t{most});
  driver("cuMemAlloc_v2", &out, size_t{most});
  const std::vector<float> ones(most / 4, 1.0f + static_cast<float>(rank));
  driver("cuMemcpyHtoD_v2", in, static_cast<const void*>(ones.data()), size_t{most});
  std::vector<float> got(most / 4);
  for (size_t which = 0; which < std::size(kSizes); ++which) {
    const uint64_t bytes = kSizes[which];
    const int operations = bytes <= (1 << 20) ? 400 : 20;
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    call.count = bytes / 4;
    call.input = reinterpret_cast<void*>(in);
    call.output = reinterpret_cast<void*>(out);
    void* graph = nullptr;
    void* ready = nullptr;
    driver("cuStreamBeginCapture_v2", stream, 2);
    for (int i = 0; i < operations; ++i)
      need(towline_collective_issue(world, &call, nullptr, stream), "issue");
    driver("cuStreamEndCapture", stream, &graph);
    driver("cuGraphInstantiateWithFlags", &ready, graph, 0ull);
    std::vector<double> times;
    for (int round = 0; round < 12; ++round) {
      together.arrive_and_wait();
      const auto began = Clock::now();
      driver("cuGraphLaunch", ready, stream);
      driver("cuStreamSynchronize", stream);
      if (round >= 3) times.push_back(microseconds(began) / operations);
    }
    if (bytes == 4 << 10) {
      for (int turn = 0; turn < size; ++turn) {
        together.arrive_and_wait();
        if (turn != rank) continue;
        const auto issuing = Clock::now();
        for (int i = 0; i < 200; ++i) need(towline_collective_issue(world, &call, nullptr, stream), "issue");
        if (rank == size - 1) outcomes[which].issue_us = microseconds(issuing) / 200;
      }
      driver("cuStreamSynchronize", stream);
    }
    driver("cuMemcpyDtoH_v2", static_cast<void*>(got.data()), out, size_t{bytes});
    const float sum = static_cast<float>(size * (size + 1)) / 2;
    const bool right = std::all_of(got.begin(), got.begin() + static_cast<long>(bytes / 4),
                                   [&](float value) { return value == sum; });
    if (rank == 0) outcomes[which].graph_us = median(times);
    if (!right) outcomes[which].right = false;
    together.arrive_and_wait();
    driver("cuGraphExecDestroy", ready);
    driver("cuGraphDestroy", graph);
  }
  need(towline_communicator_error(world, nullptr, 0, nullptr), "the communicator broke");
  together.arrive_and_wait();
  towline_communicator_destroy(world);
}

constexpr int kInGraph[] = {1, 20, 400};

// What replays cost that are ordered with calls in other streams, beside replays that are not: microseconds of one, in turns.
// `times`: of each number of operations in a graph, without and with order.
void time_replays(int rank, int size, bench::RankStore& store, std::barrier<>& together,
                  std::vector<std::vector<double>>& times) {
  void* context = nullptr;
  driver("cuDevicePrimaryCtxRetain", &context, 0);
  driver("cuCtxSetCurrent", context);
  const auto table = store.table();
  void* stream = nullptr;
  driver("cuStreamCreate", &stream, 1u);
  Pointer memory = 0;
  driver("cuMemAlloc_v2", &memory, size_t{4096});
  driver("cuMemsetD8_v2", memory, static_cast<unsigned char>(0), size_t{4096});
  std::vector<towline_communicator_t*> worlds;
  std::vector<void*> graphs;
  for (const char* const ordered : {"0", "1"}) {
    const std::string name = fmt::format("order {}", ordered);
    const std::string config = fmt::format("[tuning.collectives]\ngpu_order_replays = {}\n", ordered);
    towline_communicator_options_t options = {};
    options.struct_size = sizeof options;
    options.name = name.c_str();
    options.backend = "gpu";
    options.rank = rank;
    options.size = size;
    options.store = &table;
    options.config = config.c_str();
    options.timeout_ns = 20'000'000'000;
    need(towline_communicator_create(&options, &worlds.emplace_back()), "communicator");
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    call.count = 1024;
    call.input = call.output = reinterpret_cast<void*>(memory);
    for (const int operations : kInGraph) {
      void* graph = nullptr;
      driver("cuStreamBeginCapture_v2", stream, 2);
      for (int i = 0; i < operations; ++i)
        need(towline_collective_issue(worlds.back(), &call, nullptr, stream), "issue");
      driver("cuStreamEndCapture", stream, &graph);
      driver("cuGraphInstantiateWithFlags", &graphs.emplace_back(), graph, 0ull);
      driver("cuGraphUpload", graphs.back(), stream);
    }
  }
  driver("cuStreamSynchronize", stream);
  for (int round = 0; round < 30; ++round) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      const int launches = 400 / kInGraph[i % std::size(kInGraph)];
      together.arrive_and_wait();
      const auto began = Clock::now();
      for (int launch = 0; launch < launches; ++launch) driver("cuGraphLaunch", graphs[i], stream);
      driver("cuStreamSynchronize", stream);
      if (rank == 0 && round >= 3) times[i].push_back(microseconds(began) / launches);
    }
  }
  together.arrive_and_wait();
  for (void* const graph : graphs) driver("cuGraphExecDestroy", graph);
  for (towline_communicator_t* const world : worlds) {
    need(towline_communicator_error(world, nullptr, 0, nullptr), "the communicator broke");
    towline_communicator_destroy(world);
  }
}

void print_replays() {
  for (const int size : {2, 4}) {
    bench::RankStore store;
    std::barrier<> together(size);
    std::vector<std::vector<double>> times(2 * std::size(kInGraph));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] { time_replays(rank, size, store, together, times); });
    for (std::thread& rank : ranks) rank.join();
    fmt::print("{} ranks: us a replay of all_reduces of 4 KiB, median (min, max), without and with order\n",
               size);
    for (size_t which = 0; which < std::size(kInGraph); ++which) {
      fmt::print("{:>10}", kInGraph[which]);
      for (const size_t column : {which, which + std::size(kInGraph)}) {
        const auto [least, most] = std::minmax_element(times[column].begin(), times[column].end());
        fmt::print("   {:>8.2f} ({:.2f}, {:.2f})", median(times[column]), *least, *most);
      }
      fmt::print("\n");
    }
    std::fflush(stdout);
  }
}

// An all_reduce of rows of 4096 bfloat16 alone, and with a residual and RMSNorm: microseconds in a graph.
constexpr uint64_t kWidth = 4096;
constexpr uint64_t kRows[] = {1, 2, 4, 8, 16, 32, 64, 256};

void run_norms(int rank, int size, bench::RankStore& store, std::barrier<>& together,
               std::vector<std::pair<double, double>>& outcomes) {
  void* context = nullptr;
  driver("cuDevicePrimaryCtxRetain", &context, 0);
  driver("cuCtxSetCurrent", context);
  const auto table = store.table();
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.backend = "gpu";
  options.rank = rank;
  options.size = size;
  options.store = &table;
  options.timeout_ns = 20'000'000'000;
  towline_communicator_t* world = nullptr;
  need(towline_communicator_create(&options, &world), "communicator");
  void* stream = nullptr;
  driver("cuStreamCreate", &stream, 1u);
  const uint64_t most = std::end(kRows)[-1] * kWidth * 2;
  Pointer in = 0, out = 0, residual = 0, weight = 0;
  for (Pointer* const one : {&in, &out, &residual, &weight}) {
    driver("cuMemAlloc_v2", one, size_t{most});
    driver("cuMemsetD8_v2", *one, static_cast<unsigned char>(0), size_t{most});
  }
  for (size_t which = 0; which < std::size(kRows); ++which) {
    for (const bool fused : {false, true}) {
      constexpr int kOperations = 200;
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
      call.datatype = TOWLINE_BFLOAT16;
      call.count = kRows[which] * kWidth;
      call.input = reinterpret_cast<void*>(in);
      call.output = reinterpret_cast<void*>(out);
      towline_collective_norm_t norm = {};
      norm.struct_size = sizeof norm;
      norm.datatype = TOWLINE_BFLOAT16;
      norm.epsilon = 1e-5f;
      norm.rows = kRows[which];
      norm.width = kWidth;
      norm.input = call.input;
      norm.output = call.output;
      norm.residual = reinterpret_cast<void*>(residual);
      norm.weight = reinterpret_cast<void*>(weight);
      void* graph = nullptr;
      void* ready = nullptr;
      driver("cuStreamBeginCapture_v2", stream, 2);
      for (int i = 0; i < kOperations; ++i)
        need(fused ? towline_collective_issue_norm(world, &norm, nullptr, stream)
                   : towline_collective_issue(world, &call, nullptr, stream),
             "issue");
      driver("cuStreamEndCapture", stream, &graph);
      driver("cuGraphInstantiateWithFlags", &ready, graph, 0ull);
      std::vector<double> times;
      for (int round = 0; round < 12; ++round) {
        together.arrive_and_wait();
        const auto began = Clock::now();
        driver("cuGraphLaunch", ready, stream);
        driver("cuStreamSynchronize", stream);
        if (round >= 3) times.push_back(microseconds(began) / kOperations);
      }
      if (rank == 0) (fused ? outcomes[which].second : outcomes[which].first) = median(times);
      together.arrive_and_wait();
      driver("cuGraphExecDestroy", ready);
      driver("cuGraphDestroy", graph);
    }
  }
  need(towline_communicator_error(world, nullptr, 0, nullptr), "the communicator broke");
  together.arrive_and_wait();
  towline_communicator_destroy(world);
}

void print_norms() {
  fmt::print("rows of {} bfloat16: us an all_reduce, and with residual and RMSNorm, 2, 4 and 8 ranks\n",
             kWidth);
  std::vector<std::vector<std::pair<double, double>>> columns;
  for (const int size : {2, 4, 8}) {
    bench::RankStore store;
    std::barrier<> together(size);
    auto& outcomes = columns.emplace_back(std::size(kRows));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] { run_norms(rank, size, store, together, outcomes); });
    for (std::thread& rank : ranks) rank.join();
  }
  for (size_t which = 0; which < std::size(kRows); ++which) {
    fmt::print("{:>10}", kRows[which]);
    for (const auto& column : columns)
      fmt::print("   {:>7.2f} {:>7.2f}", column[which].first, column[which].second);
    fmt::print("\n");
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  driver("cuInit", 0u);
  if (argc > 1) need(towline_collective_backend_load("gpu", argv[1]), "backend");
  if (argc > 2 && std::string_view(argv[2]) == "norms") {
    print_norms();
    return 0;
  }
  if (argc > 2 && std::string_view(argv[2]) == "replays") {
    print_replays();
    return 0;
  }
  const std::pair<const char*, const char*> settings[] = {
      {"as it chooses", ""},
      {"without marked stores", "[tuning.collectives]\ngpu_marked_bytes = 0\ngpu_marked_two_bytes = 0\n"},
      {"marked to 64 KiB", "[tuning.collectives]\ngpu_marked_bytes = 65536\n"},
      {"staged", "[tuning.collectives]\ngpu_direct = 0\ngpu_marked_bytes = 0\ngpu_marked_two_bytes = 0\n"}};
  for (const auto& [name, config] : settings) {
    std::vector<std::vector<Outcome>> columns;
    for (const int size : {2, 4, 8}) {
      bench::RankStore store;
      std::barrier<> together(size);
      auto& outcomes = columns.emplace_back(std::size(kSizes));
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < size; ++rank)
        ranks.emplace_back([&, rank] { run_rank(rank, size, "gpu", config, store, together, outcomes); });
      for (std::thread& rank : ranks) rank.join();
    }
    fmt::print("{}\n{:>10} {:>10} {:>10} {:>10}   us an all_reduce in a graph, 2, 4 and 8 ranks\n", name,
               "bytes", 2, 4, 8);
    for (size_t which = 0; which < std::size(kSizes); ++which) {
      fmt::print("{:>10}", kSizes[which]);
      for (const auto& column : columns)
        fmt::print(" {:>10.2f}{}", column[which].graph_us, column[which].right ? "" : "!");
      if (kSizes[which] == 4 << 10)
        fmt::print("   issue {:.2f} {:.2f} {:.2f} us", columns[0][which].issue_us, columns[1][which].issue_us,
                   columns[2][which].issue_us);
      if (kSizes[which] >= 16 << 20) {
        // Every rank reads all inputs of its part, and writes its part to all.
        fmt::print("   {:.2f} {:.2f} {:.2f} TB/s",
                   4e-6 * static_cast<double>(kSizes[which]) / columns[0][which].graph_us,
                   8e-6 * static_cast<double>(kSizes[which]) / columns[1][which].graph_us,
                   16e-6 * static_cast<double>(kSizes[which]) / columns[2][which].graph_us);
      }
      fmt::print("\n");
    }
    std::fflush(stdout);
  }
  return 0;
}

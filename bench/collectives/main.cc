// collectives_bench [ranks]: each operation and size in turn by a bare shared-memory program and by
// Towline, in the same processes; the slowest rank's median, in microseconds, and bare's over ours.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bare.h"
#include "towline/collectives.h"

namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void need(int32_t status) {
  if (status >= 0) return;
  fmt::print(stderr, "{}\n", towline_last_error());
  ::_exit(1);
}

struct Results {
  double median[64];  // by rank
};

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const size_t shared_bytes = bench::Bare::bytes(ranks);
  void* shared = ::mmap(nullptr, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* results = static_cast<Results*>(
      ::mmap(nullptr, sizeof(Results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::string folder = "/tmp/towline-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  const std::string bootstrap = "file:" + folder + "/store";
  int rank = 0;
  std::vector<pid_t> children;
  for (int i = 1; i < ranks && rank == 0; ++i) {
    const pid_t child = ::fork();
    if (child == 0)
      rank = i;
    else
      children.push_back(child);
  }

  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.rank = rank;
  options.size = ranks;
  options.bootstrap = bootstrap.c_str();
  towline_communicator_t* world = nullptr;
  need(towline_communicator_create(&options, &world));
  bench::Bare bare(shared, rank, ranks);

  const auto n = static_cast<size_t>(ranks);
  const size_t most = size_t{64} << 20;
  std::vector<float> in(most / 4, 1);
  std::vector<float> out(most / 4);
  if (rank == 0)
    fmt::print("{:16} {:>10} {:>10} {:>10} {:>6}\n", "operation", "bytes", "bare us", "ours us", "ratio");
  for (const size_t bytes : {size_t{8}, size_t{4096}, size_t{65536}, size_t{1} << 20, most}) {
    const size_t count = std::max<size_t>(bytes / 4, 1);
    const size_t part = std::max<size_t>(count / n, 1);
    struct Operation {
      const char* name;
      std::function<void()> bare;
      std::function<void()> ours;
    };
    const Operation operations[] = {
        {"all_reduce", [&] { bare.all_reduce(in.data(), out.data(), count); },
         [&] {
           need(towline_all_reduce(world, in.data(), out.data(), count, TOWLINE_FLOAT32, TOWLINE_SUM, nullptr,
                                   nullptr));
         }},
        {"broadcast", [&] { bare.broadcast(out.data(), count, 0); },
         [&] { need(towline_broadcast(world, out.data(), count, TOWLINE_FLOAT32, 0, nullptr, nullptr)); }},
        {"all_gather", [&] { bare.all_gather(in.data(), out.data(), part); },
         [&] {
           need(towline_all_gather(world, in.data(), out.data(), part, TOWLINE_FLOAT32, nullptr, nullptr));
         }},
        {"reduce_scatter", [&] { bare.reduce_scatter(in.data(), out.data(), part); },
         [&] {
           need(towline_reduce_scatter(world, in.data(), out.data(), part, TOWLINE_FLOAT32, TOWLINE_SUM,
                                       nullptr, nullptr));
         }},
        {"all_to_all", [&] { bare.all_to_all(in.data(), out.data(), part); },
         [&] {
           need(towline_all_to_all(world, in.data(), out.data(), part, TOWLINE_FLOAT32, nullptr, nullptr));
         }},
    };
    for (const Operation& operation : operations) {
      std::vector<double> medians[2];
      // Calls a round such that a round takes a while; a round of each in turn.
      const size_t calls = bytes <= 65536 ? 200 : 1;
      for (int round = 0; round < (bytes == most ? 9 : 41); ++round) {
        for (int which = 0; which < 2; ++which) {
          const auto& run = which == 0 ? operation.bare : operation.ours;
          bare.barrier();
          const double began = now_us();
          for (size_t i = 0; i < calls; ++i) run();
          medians[which].push_back((now_us() - began) / static_cast<double>(calls));
        }
      }
      double slowest[2];
      for (int which = 0; which < 2; ++which) {
        std::ranges::nth_element(medians[which],
                                 medians[which].begin() + static_cast<ptrdiff_t>(medians[which].size() / 2));
        results->median[rank] = medians[which][medians[which].size() / 2];
        bare.barrier();
        slowest[which] = *std::max_element(results->median, results->median + ranks);
        bare.barrier();
      }
      if (rank != 0) continue;
      fmt::print("{:16} {:>10} {:>10.2f} {:>10.2f} {:>6.2f}\n", operation.name, bytes, slowest[0], slowest[1],
                 slowest[0] / slowest[1]);
      std::fflush(stdout);
    }
  }
  towline_communicator_destroy(world);
  if (rank != 0) ::_exit(0);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  return std::system(("rm -r " + folder).c_str());
}

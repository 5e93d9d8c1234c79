// all_reduce among three hosts of which one comes late, in rank order and in any order (the hint `order`) in turns: the time from its
// coming until every rank has the result. Ranks are threads that count as being on different hosts, with TCP between them.
//
//   towline_bench_late_host [ROUNDS]
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/table.h"
#include "towline/collectives.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 3;
constexpr auto kLate = std::chrono::milliseconds(100);
constexpr std::array<const char*, 2> kOrders = {"rank", "any"};
constexpr std::array<size_t, 3> kBytes = {size_t{1} << 20, size_t{16} << 20, size_t{64} << 20};

struct Sample {
  Clock::time_point came;
  std::array<Clock::time_point, kRanks> ended;
  double ms() const {
    return std::chrono::duration<double, std::milli>(*std::max_element(ended.begin(), ended.end()) - came)
        .count();
  }
};
using Samples = std::vector<std::array<Sample, kOrders.size()>>;  // of each round

towline::Communicator join(int rank, const std::string& folder, const char* order) {
  const std::string config = fmt::format("[collectives]\nhost = \"{}\"\nlisten = \"127.0.0.1:0\"\n", rank);
  const char* const hints[] = {"order", order, nullptr};
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.name = order;
  options.rank = rank;
  options.size = kRanks;
  options.bootstrap = folder.c_str();
  options.config = config.c_str();
  options.hints = hints;
  return towline::Communicator(options);
}

void run_rank(int rank, const std::string& folder, std::array<Samples, kBytes.size()>& samples) {
  std::vector<towline::Communicator> worlds;
  for (const char* order : kOrders) worlds.push_back(join(rank, folder, order));
  for (size_t size = 0; size < kBytes.size(); ++size) {
    const std::vector<float> in(kBytes[size] / sizeof(float), static_cast<float>(rank));
    std::vector<float> out(in.size());
    for (const towline::Communicator& world : worlds) world.all_reduce(in, out);  // connects
    for (size_t round = 0; round < samples[size].size(); ++round) {
      for (size_t turn = 0; turn < kOrders.size(); ++turn) {
        const size_t order = (turn + round) % kOrders.size();
        Sample& sample = samples[size][round][order];
        worlds[order].barrier();
        if (rank == kRanks - 1) {
          std::this_thread::sleep_for(kLate);
          sample.came = Clock::now();
        }
        worlds[order].all_reduce(in, out);
        sample.ended[static_cast<size_t>(rank)] = Clock::now();
        if (out.front() != 3 || out.back() != 3) std::abort();
      }
    }
  }
}

std::string text_of(std::vector<double> values, const char* format) {
  std::sort(values.begin(), values.end());
  return fmt::format(fmt::runtime(format), values[values.size() / 2], values.front(), values.back());
}

}  // namespace

int main(int count, char** arguments) {
  const size_t rounds = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 15;
  std::string folder = (std::filesystem::temp_directory_path() / "towline-late-XXXXXX").string();
  if (rounds == 0 || ::mkdtemp(folder.data()) == nullptr) return 1;
  std::array<Samples, kBytes.size()> samples;
  samples.fill(Samples(rounds));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] { run_rank(rank, "file:" + folder, samples); });
  for (std::thread& rank : ranks) rank.join();
  std::filesystem::remove_all(folder);

  bench::Rows rows = {{"size", "rank order ms", "any order ms", "rank / any"}};
  for (size_t size = 0; size < kBytes.size(); ++size) {
    std::array<std::vector<double>, kOrders.size()> ms;
    std::vector<double> ratios;
    for (const auto& round : samples[size]) {
      for (size_t order = 0; order < kOrders.size(); ++order) ms[order].push_back(round[order].ms());
      ratios.push_back(round[0].ms() / round[1].ms());
    }
    rows.push_back({fmt::format("{} MiB", kBytes[size] >> 20), text_of(ms[0], "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(ms[1], "{:.2f} [{:.2f} {:.2f}]"), text_of(ratios, "{:.2f} [{:.2f} {:.2f}]")});
  }
  fmt::print("{}", bench::render(rows));
}

#include "rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "contender.h"
#include "support/process.h"
#include "support/statistics.h"
#include "team.h"

namespace bench {
namespace {

// The value that rank `rank` gives at element `i` of its input: sums stay exact in float32.
float value_of(int rank, size_t i) { return static_cast<float>(rank + 1 + static_cast<int>(i % 61)); }

class Measurement {
 public:
  Measurement(const Plan& plan, Team& team, std::vector<std::unique_ptr<Contender>>& contenders)
      : plan_(plan), team_(team), contenders_(contenders) {
    size_t most = 1;
    for (const Cell& cell : plan.cells) most = std::max<size_t>(most, cell.bytes / sizeof(float));
    most += static_cast<size_t>(team.ranks());  // a part is one element at least
    in_.resize(most);
    for (size_t i = 0; i < most; ++i) in_[i] = value_of(team.rank(), i);
    out_.resize(most);
  }

  void run(const Cell& cell) {
    const auto ranks = static_cast<size_t>(team_.ranks());
    const size_t whole = std::max<size_t>(cell.bytes / sizeof(float), 1);
    const bool parts = cell.operation != "all_reduce" && cell.operation != "reduce" &&
                       cell.operation != "broadcast" && cell.operation != "barrier";
    const size_t count = parts ? std::max<size_t>(whole / ranks, 1) : whole;
    std::vector<uint64_t> calls(contenders_.size());
    for (size_t which = 0; which < contenders_.size(); ++which) {
      Contender& contender = *contenders_[which];
      std::fill(out_.begin(), out_.end(), 0.0F);
      if (cell.operation == "broadcast")
        for (size_t i = 0; i < count; ++i) out_[i] = value_of(team_.rank(), i);
      team_.meet();
      if (!contender.run(cell.operation, in_.data(), out_.data(), count)) continue;
      check(contender, cell, count);
      calls[which] = calibrate(contender, cell, count);
    }
    for (int round = 0; round < plan_.rounds; ++round) {
      for (size_t turn = 0; turn < contenders_.size(); ++turn) {
        const size_t which = (turn + static_cast<size_t>(round)) % contenders_.size();
        if (calls[which] == 0) continue;
        team_.meet();
        team_.board().samples_us[which][round][team_.rank()] =
            timed(*contenders_[which], cell, count, calls[which]) * 1e6 / static_cast<double>(calls[which]);
      }
    }
    team_.meet();
    if (team_.rank() == 0) report(cell, calls);
    team_.meet();
  }

 private:
  double timed(Contender& contender, const Cell& cell, size_t count, uint64_t calls) {
    const double began = now_s();
    if (plan_.fresh) return timed_with_fresh_inputs(contender, cell, count, calls);
    for (uint64_t i = 0; i < calls; ++i) contender.run(cell.operation, in_.data(), out_.data(), count);
    return now_s() - began;
  }

  // Each rank has written its input since the last call, as applications do: no other processor has a copy of it in its caches.
  double timed_with_fresh_inputs(Contender& contender, const Cell& cell, size_t count, uint64_t calls) {
    auto& inputs = cell.operation == "broadcast" ? out_ : in_;
    double all = 0;
    for (uint64_t call = 0; call < calls; ++call) {
      for (size_t i = 0; i < inputs.size() && i < cell.bytes / sizeof(float); ++i)
        inputs[i] = value_of(team_.rank(), i);
      team_.meet();
      const double began = now_s();
      contender.run(cell.operation, in_.data(), out_.data(), count);
      all += now_s() - began;
    }
    return all;
  }

  uint64_t calibrate(Contender& contender, const Cell& cell, size_t count) {
    for (uint64_t calls = 1;; calls *= 4) {
      team_.meet();
      const double took = timed(contender, cell, count, calls);
      const auto took_ns = static_cast<double>(team_.agree(static_cast<uint64_t>(took * 1e9)));
      if (took_ns * 1e-9 * 4 < plan_.sample_s) continue;
      return std::max<uint64_t>(
          1, static_cast<uint64_t>(static_cast<double>(calls) * plan_.sample_s * 1e9 / took_ns));
    }
  }

  void check(Contender& contender, const Cell& cell, size_t count) {
    const auto right = [&](size_t i) -> double {
      const auto ranks = static_cast<size_t>(team_.ranks());
      double sum = 0;
      const size_t at =
          cell.operation == "reduce_scatter" ? static_cast<size_t>(team_.rank()) * count + i : i;
      for (int rank = 0; rank < team_.ranks(); ++rank) sum += static_cast<double>(value_of(rank, at));
      if (cell.operation == "broadcast") return static_cast<double>(value_of(0, i));
      if (cell.operation == "scatter")
        return static_cast<double>(value_of(0, static_cast<size_t>(team_.rank()) * count + i));
      if (cell.operation == "all_gather" || cell.operation == "gather")
        return static_cast<double>(value_of(static_cast<int>(i / count % ranks), i % count));
      if (cell.operation == "all_to_all")
        return static_cast<double>(value_of(static_cast<int>(i / count % ranks),
                                            static_cast<size_t>(team_.rank()) * count + i % count));
      return sum;
    };
    size_t length = count;
    if (cell.operation == "all_gather" || cell.operation == "all_to_all" || cell.operation == "gather")
      length = count * static_cast<size_t>(team_.ranks());
    const bool rooted = cell.operation == "reduce" || cell.operation == "gather";
    if (cell.operation == "barrier" || (rooted && team_.rank() != 0)) return;
    for (size_t i = 0; i < length; ++i) {
      if (static_cast<double>(out_[i]) == right(i)) continue;
      fmt::print(stderr, "{}: {} of {} bytes is wrong at element {} of rank {}: {} for {}\n",
                 contender.name(), cell.operation, cell.bytes, i, team_.rank(), out_[i], right(i));
      team_.board().failed.fetch_add(1);
      return;
    }
  }

  // The slowest rank of each round.
  void report(const Cell& cell, const std::vector<uint64_t>& calls) {
    nlohmann::json line = {{"operation", cell.operation}, {"bytes", cell.bytes}, {"ranks", team_.ranks()}};
    for (size_t which = 0; which < contenders_.size(); ++which) {
      if (calls[which] == 0) continue;
      std::vector<double> slowest;
      for (int round = 0; round < plan_.rounds; ++round) {
        const double* samples = team_.board().samples_us[which][round];
        slowest.push_back(*std::max_element(samples, samples + team_.ranks()));
      }
      const Spread spread = spread_of(slowest);
      line["us"][contenders_[which]->name()] = {{"median", spread.median},
                                                {"p99", percentile(slowest, 0.99)},
                                                {"min", spread.min},
                                                {"max", spread.max},
                                                {"samples", slowest}};
    }
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }

  const Plan& plan_;
  Team& team_;
  std::vector<std::unique_ptr<Contender>>& contenders_;
  std::vector<float> in_;
  std::vector<float> out_;
};

}  // namespace

int run_rank(const Plan& plan, const std::string& team_name, const std::string& folder, int rank, int ranks) {
  try {
    Team team(team_name, rank, ranks);
    std::vector<std::unique_ptr<Contender>> contenders;
    for (const std::string& name : plan.contenders) {
      std::unique_ptr<Contender> made;
      if (name == "bare") made = make_bare(team);
      if (name == "towline") made = make_towline(team, folder, true);
      if (name == "towline_tcp") made = make_towline(team, folder, false);
      if (name == "mpi") made = make_mpi();
      if (made != nullptr) contenders.push_back(std::move(made));
    }
    if (contenders.size() > static_cast<size_t>(kMostContenders) || plan.rounds > kMostRounds)
      throw std::runtime_error("too many contenders or rounds");
    Measurement measurement(plan, team, contenders);
    for (const Cell& cell : plan.cells) measurement.run(cell);
    team.meet();
    return team.board().failed.load() == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
    return 1;
  }
}

}  // namespace bench

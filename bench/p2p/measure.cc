#include "measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "support/idle_machine.h"

namespace bench {
namespace {

constexpr std::uint64_t kMostIterations = 2'000'000;

struct Entrant {
  Contender* contender;
  std::uint64_t iterations;
};

void check_bytes(Contender& contender) {
  if (contender.by_time()) return;  // its bytes are its own
  static std::uint64_t epoch = 0;
  contender.stamp_source(++epoch);
  contender.run(1);
  const std::size_t wrong = contender.verify(epoch);
  if (wrong != 0) throw std::runtime_error(fmt::format("{} blocks arrived wrong", wrong));
}

std::uint64_t calibrate(Contender& contender, double batch_s) {
  if (contender.by_time()) return 1;
  for (std::uint64_t iterations = 1;; iterations *= 4) {
    const double elapsed = contender.run(iterations);
    if (elapsed < batch_s / 10 && iterations < kMostIterations / 4) continue;
    const double fitting = std::ceil(batch_s / elapsed * static_cast<double>(iterations));
    return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(fitting), 1, kMostIterations);
  }
}

}  // namespace

std::vector<double> CellResult::gigabytes_per_s(const std::string& contender) const {
  std::vector<double> rates;
  const auto found = seconds.find(contender);
  if (found == seconds.end()) return rates;
  for (double s : found->second) rates.push_back(static_cast<double>(cell.bytes()) / s / 1e9);
  return rates;
}

CellResult measure(const Cell& cell, std::size_t span, const Contenders& contenders,
                   const Settings& settings) {
  CellResult result{cell, {}, {}};
  const BlockLists lists = make_lists(cell, span);
  std::vector<Entrant> entrants;
  for (const auto& contender : contenders) {
    if (!contender->supports(cell)) continue;
    try {
      contender->prepare(cell, lists);
      check_bytes(*contender);
      entrants.push_back({contender.get(), calibrate(*contender, settings.batch_s)});
    } catch (const std::exception& error) {
      result.failures[contender->name()] = error.what();
    }
  }
  for (int round = 0; round < settings.rounds; ++round) {
    if (settings.quiet_s > 0) wait_until_quiet(settings.quiet_s);
    for (std::size_t i = 0; i < entrants.size(); ++i) {
      // Every other round goes backwards: turns that only move on leave each contender behind the same one,
      // and what that one has done to a disk or to caches counts for it in every round.
      const std::size_t turn = round % 2 == 0 ? i : entrants.size() - 1 - i;
      const Entrant& next = entrants[(turn + static_cast<std::size_t>(round)) % entrants.size()];
      const double elapsed = next.contender->run(next.iterations);
      result.seconds[next.contender->name()].push_back(elapsed / static_cast<double>(next.iterations));
    }
  }
  for (const Entrant& entrant : entrants) entrant.contender->release();
  return result;
}

}  // namespace bench

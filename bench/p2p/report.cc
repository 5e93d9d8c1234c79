#include "report.h"

#include <fmt/format.h>

#include <algorithm>

#include "support/table.h"

namespace bench {
namespace {

struct Ratio {
  std::string against;
  Spread spread;    // within rounds
  double best = 0;  // best round over best round: what is left when other programs disturb most rounds
};

// The candidate with the best median in this cell; empty when none was measured.
std::string best_of(const CellResult& result, const std::vector<std::string>& candidates) {
  std::string best;
  double best_rate = 0;
  for (const std::string& name : candidates) {
    const double rate = spread_of(result.gigabytes_per_s(name)).median;
    if (rate > best_rate) {
      best = name;
      best_rate = rate;
    }
  }
  return best;
}

Ratio ratio_of(const CellResult& result, const std::string& ours,
               const std::vector<std::string>& candidates) {
  const std::string best = best_of(result, candidates);
  const auto numerator = result.gigabytes_per_s(ours);
  const auto denominator = result.gigabytes_per_s(best);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(numerator.size(), denominator.size()); ++i)
    ratios.push_back(numerator[i] / denominator[i]);
  if (ratios.empty()) return {best, {}, 0};
  return {best, spread_of(ratios), spread_of(numerator).max / spread_of(denominator).max};
}

std::string cell_text(const Spread& spread, bool spreads) {
  if (spread.median == 0) return "-";
  if (spreads) return fmt::format("{:.3g} [{:.3g} {:.3g}]", spread.median, spread.min, spread.max);
  return fmt::format("{:.3g}", spread.median);
}

std::string ratio_text(const Ratio& ratio) {
  if (ratio.spread.median == 0) return "-";
  return fmt::format("{:.2f} [{:.2f} {:.2f}], best {:.2f}, {}", ratio.spread.median, ratio.spread.min,
                     ratio.spread.max, ratio.best, ratio.against);
}

Json spread_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

}  // namespace

std::string summary(const CellResult& result) {
  std::string line;
  for (const auto& [name, seconds] : result.seconds)
    line += fmt::format(" {} {:.3g}", name, spread_of(result.gigabytes_per_s(name)).median);
  return line;
}

std::string bandwidth_table(const std::vector<CellResult>& results, const Contenders& contenders,
                            bool spreads) {
  Rows rows = {{"GB/s"}};
  for (const auto& contender : contenders) rows[0].push_back(contender->name());
  for (const CellResult& result : results) {
    rows.push_back({result.cell.name()});
    for (const auto& contender : contenders)
      rows.back().push_back(cell_text(spread_of(result.gigabytes_per_s(contender->name())), spreads));
  }
  return render(rows);
}

std::string ratio_table(const std::vector<CellResult>& results, const Contenders& contenders) {
  Rows rows = {{"ratio"}};
  for (const auto& contender : contenders) {
    if (contender->limits().empty()) continue;
    rows[0].push_back(contender->name() + " / limit");
    rows[0].push_back(contender->name() + " / peer");
  }
  if (rows[0].size() == 1) return {};
  for (const CellResult& result : results) {
    rows.push_back({result.cell.name()});
    for (const auto& contender : contenders) {
      if (contender->limits().empty()) continue;
      rows.back().push_back(ratio_text(ratio_of(result, contender->name(), contender->limits())));
      rows.back().push_back(ratio_text(ratio_of(result, contender->name(), contender->peers())));
    }
  }
  return render(rows);
}

Json to_json(const std::vector<CellResult>& results, const Contenders& contenders) {
  Json cells = Json::array();
  for (const CellResult& result : results) {
    Json entry = {{"op", result.cell.op_name()}, {"block", result.cell.block}, {"count", result.cell.count}};
    entry["failures"] = result.failures;
    for (const auto& [name, seconds] : result.seconds) {
      entry["contenders"][name] = spread_json(spread_of(result.gigabytes_per_s(name)));
      entry["contenders"][name]["seconds"] = seconds;
    }
    for (const auto& contender : contenders) {
      if (contender->limits().empty() || !result.seconds.contains(contender->name())) continue;
      for (const auto& [key, candidates] :
           {std::pair{"limit", contender->limits()}, {"peer", contender->peers()}}) {
        const Ratio ratio = ratio_of(result, contender->name(), candidates);
        entry["ratios"][contender->name()][key] = spread_json(ratio.spread);
        entry["ratios"][contender->name()][key]["against"] = ratio.against;
        entry["ratios"][contender->name()][key]["best"] = ratio.best;
      }
    }
    cells.push_back(std::move(entry));
  }
  return cells;
}

}  // namespace bench

#include "comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace bench {

void add_options(CLI::App& app, ComparisonOptions& options, const char* span) {
  app.add_flag("--spreads", options.spreads, "print [min max] beside each median");
  app.add_option("--span", options.span, span)->capture_default_str();
  app.add_option("--rounds", options.settings.rounds)->capture_default_str();
  app.add_option("--batch-s", options.settings.batch_s, "seconds of a contender in a round")
      ->capture_default_str();
  app.add_option("--quiet-s", options.settings.quiet_s,
                 "wait up to so long before each round for an idle machine")
      ->capture_default_str();
  app.add_option("--only", options.only, "contenders to run")->delimiter(',');
  app.add_option("--without", options.without, "contenders to leave out")->delimiter(',');
  app.add_option("--cells", options.cells, "OP:BLOCK:COUNT, such as READ:4k:1024")->delimiter(',');
  app.add_option("--nixl-python", options.nixl_python,
                 "interpreter that peers/nixl/setup printed; without it no peer");
  app.add_option("--nixl-script", options.nixl_script)->capture_default_str();
  app.add_option("--json", options.json_file, "write every sample to this file");
}

Contenders set_up(Contenders all, const ComparisonOptions& options) {
  const auto has = [](const auto& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  Contenders ready;
  for (auto& contender : all) {
    const std::string name = contender->name();
    if ((!options.only.empty() && !has(options.only, name)) || has(options.without, name)) continue;
    try {
      contender->setup();
      ready.push_back(std::move(contender));
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: left out: {}\n", name, error.what());
    }
  }
  return ready;
}

std::vector<Cell> chosen_cells(const ComparisonOptions& options, std::vector<Cell> all) {
  if (options.cells.empty()) return all;
  std::vector<Cell> cells;
  for (const std::string& text : options.cells) cells.push_back(parse_cell(text));
  return cells;
}

int compare(const std::vector<Cell>& cells, std::size_t span, const Contenders& contenders,
            const ComparisonOptions& options, Json about) {
  std::vector<CellResult> results;
  const double start = now_s();
  for (const Cell& cell : cells) {
    results.push_back(measure(cell, span, contenders, options.settings));
    fmt::print(stderr, "{:5.0f} s  {}: {}\n", now_s() - start, cell.name(), summary(results.back()));
    for (const auto& [name, why] : results.back().failures)
      fmt::print(stderr, "  {} failed: {}\n", name, why);
  }
  fmt::print("{}\n{}", bandwidth_table(results, contenders, options.spreads),
             ratio_table(results, contenders));
  if (!options.json_file.empty()) {
    about.update(
        {{"span", span}, {"rounds", options.settings.rounds}, {"cells", to_json(results, contenders)}});
    std::ofstream(options.json_file) << about.dump(1) << '\n';
  }
  return std::any_of(results.begin(), results.end(), [](const auto& r) { return !r.failures.empty(); });
}

}  // namespace bench

// towline_bench_p2p: moves block lists between two processes of one host by bare limits, by the peer and by
// Towline, all interleaved in one run, and prints GB/s and ratios. Started again as `target`, it is the
// passive process.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "contender.h"
#include "measure.h"
#include "peer.h"
#include "report.h"
#include "target.h"

namespace bench {

std::vector<Family> families() {
  std::vector<Family> all = {kMappedFamily, kProcessVmFamily, kRingFamily, kTcpFamily, kHeadedFamily};
#ifdef BENCH_HAS_TOWLINE
  all.push_back(kTowlineFamily);
#endif
  return all;
}

namespace {

struct Options {
  bool quick = false;
  bool spreads = false;
  std::string span = "1g";
  std::string json_file;
  std::string nixl_python;
  std::string nixl_script = BENCH_NIXL_SCRIPT;
  std::vector<std::string> only;
  std::vector<std::string> without;
  std::vector<std::string> cells;  // "WRITE:4k:1024"
  Settings settings;
};

std::vector<Cell> chosen_cells(const Options& options, std::size_t span) {
  if (options.cells.empty()) return default_cells(span);
  std::vector<Cell> cells;
  for (const auto& text : options.cells) cells.push_back(parse_cell(text));
  return cells;
}

bool wanted(const Options& options, const std::string& name) {
  const auto has = [&](const auto& list) { return std::find(list.begin(), list.end(), name) != list.end(); };
  return (options.only.empty() || has(options.only)) && !has(options.without);
}

// A contender whose setup fails is left out: a missing peer must not stop the limits.
Contenders make_contenders(const Options& options, Session& session) {
  Contenders all;
  for (const Family& family : families()) family.add(session, all);
  if (!options.nixl_python.empty()) add_nixl(options.nixl_python, options.nixl_script, session.span, all);
  Contenders ready;
  for (auto& contender : all) {
    if (!wanted(options, contender->name())) continue;
    try {
      contender->setup();
      ready.push_back(std::move(contender));
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: left out: {}\n", contender->name(), error.what());
    }
  }
  return ready;
}

int compare(Options options) {
  const std::size_t span = parse_size(options.span);
  if (options.quick) {
    options.settings.rounds = 3;
    options.settings.batch_s = 0.004;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  ChildProcess target({self, "target", "--span", options.span});
  Session session{span, Memory::anonymous(span), &target};
  const Contenders contenders = make_contenders(options, session);

  std::vector<CellResult> results;
  const double start = now_s();
  for (const Cell& cell : chosen_cells(options, span)) {
    results.push_back(measure(cell, span, contenders, options.settings));
    fmt::print(stderr, "{:5.0f} s  {}: {}\n", now_s() - start, cell.name(), summary(results.back()));
    for (const auto& [name, why] : results.back().failures)
      fmt::print(stderr, "  {} failed: {}\n", name, why);
  }
  fmt::print("{}\n{}", bandwidth_table(results, contenders, options.spreads),
             ratio_table(results, contenders));
  if (!options.json_file.empty()) {
    const Json document = {
        {"span", span}, {"rounds", options.settings.rounds}, {"cells", to_json(results, contenders)}};
    std::ofstream(options.json_file) << document.dump(1) << '\n';
  }
  return std::any_of(results.begin(), results.end(), [](const auto& r) { return !r.failures.empty(); });
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  bench::Options options;
  CLI::App app{"Bandwidth between two processes of one host: bare limits, NIXL and Towline side by side"};
  app.add_flag("--quick", options.quick, "about one minute: three rounds, short batches");
  app.add_flag("--spreads", options.spreads, "print [min max] beside each median");
  app.add_option("--span", options.span, "bytes that blocks are drawn from, on each side")
      ->capture_default_str();
  app.add_option("--rounds", options.settings.rounds)->capture_default_str();
  app.add_option("--batch-s", options.settings.batch_s, "seconds of a contender in a round")
      ->capture_default_str();
  app.add_option("--quiet-s", options.settings.quiet_s,
                 "wait up to so long before each round for an idle machine")
      ->capture_default_str();
  app.add_option("--only", options.only, "contenders to run")->delimiter(',');
  app.add_option("--without", options.without, "contenders to leave out")->delimiter(',');
  app.add_option("--cells", options.cells, "OP:BLOCK:COUNT, such as WRITE:4k:1024")->delimiter(',');
  app.add_option("--nixl-python", options.nixl_python,
                 "interpreter that peers/nixl/setup printed; without it no peer");
  app.add_option("--nixl-script", options.nixl_script)->capture_default_str();
  app.add_option("--json", options.json_file, "write every sample to this file");
  auto* target =
      app.add_subcommand("target", "the passive process; started by the program itself")->group("");
  target->add_option("--span", options.span);
  CLI11_PARSE(app, argc, argv);
  try {
    if (target->parsed()) return bench::run_target(bench::parse_size(options.span));
    return bench::compare(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "towline_bench_p2p: {}\n", error.what());
    return 2;
  }
}

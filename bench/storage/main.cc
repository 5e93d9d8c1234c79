// towline_bench_storage: moves block lists between memory and one file by bare limits, by fio, by NIXL and by
// Towline, interleaved in one run, and prints GB/s and ratios.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>

#include "p2p/measure.h"
#include "p2p/report.h"
#include "store.h"

namespace bench {
namespace {

struct Options {
  bool spreads = false;
  bool direct = false;
  bool with_fio = false;
  std::string folder = ".";
  std::string span = "1g";
  std::string limit;
  std::string fill = "64k";
  std::string json_file;
  std::string nixl_python;
  std::string nixl_script = BENCH_NIXL_SCRIPT;
  std::vector<std::string> engines = {"auto"};
  std::vector<std::string> only;
  std::vector<std::string> without;
  std::vector<std::string> cells;
  Settings settings;
};

std::vector<Cell> chosen_cells(const Options& options, std::size_t most_bytes) {
  std::vector<Cell> cells;
  for (const std::string& text : options.cells) cells.push_back(parse_cell(text));
  if (!cells.empty()) return cells;
  for (const Op op : {Op::kRead, Op::kWrite}) {
    for (const char* block : {"4k", "64k", "1m", "16m"}) {
      for (const std::size_t count : {1, 64, 1024}) {
        const Cell cell{op, parse_size(block), count};
        if (cell.bytes() <= most_bytes) cells.push_back(cell);
      }
    }
  }
  return cells;
}

bool wanted(const Options& options, const std::string& name) {
  const auto has = [&](const auto& list) { return std::find(list.begin(), list.end(), name) != list.end(); };
  return (options.only.empty() || has(options.only)) && !has(options.without);
}

Contenders make_contenders(const Options& options, Store& store) {
  Contenders all;
  add_limits(store, all);
  if (options.with_fio) add_fio(store, all);
  if (!options.nixl_python.empty()) add_nixl_files(options.nixl_python, options.nixl_script, store, all);
#ifdef BENCH_HAS_TOWLINE
  add_towline(store, options.engines, all);
#endif
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

int compare(const Options& options) {
  const std::size_t span = parse_size(options.span);
  const std::size_t limit = options.limit.empty() ? span : std::min(span, parse_size(options.limit));
  Store store(options.folder, span, parse_size(options.fill), options.direct);
  const Contenders contenders = make_contenders(options, store);
  std::vector<CellResult> results;
  const double start = now_s();
  for (const Cell& cell : chosen_cells(options, limit)) {
    results.push_back(measure(cell, span, contenders, options.settings));
    fmt::print(stderr, "{:5.0f} s  {}: {}\n", now_s() - start, cell.name(), summary(results.back()));
    for (const auto& [name, why] : results.back().failures)
      fmt::print(stderr, "  {} failed: {}\n", name, why);
  }
  fmt::print("{}\n{}", bandwidth_table(results, contenders, options.spreads),
             ratio_table(results, contenders));
  if (!options.json_file.empty()) {
    const Json document = {{"span", span},
                           {"direct", options.direct},
                           {"rounds", options.settings.rounds},
                           {"cells", to_json(results, contenders)}};
    std::ofstream(options.json_file) << document.dump(1) << '\n';
  }
  return std::any_of(results.begin(), results.end(), [](const auto& r) { return !r.failures.empty(); });
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  bench::Options options;
  CLI::App app{"Bandwidth between memory and a file: bare limits, fio, NIXL and Towline side by side"};
  app.add_flag("--direct", options.direct, "past the page cache");
  app.add_flag("--fio", options.with_fio, "fio too, where it is installed");
  app.add_flag("--spreads", options.spreads, "print [min max] beside each median");
  app.add_option("--folder", options.folder, "where the file is made")->capture_default_str();
  app.add_option("--span", options.span, "bytes of the file")->capture_default_str();
  app.add_option("--fill", options.fill, "bytes of each write that makes the file")->capture_default_str();
  app.add_option("--limit", options.limit, "leave cells of more bytes out; the span by default");
  app.add_option("--rounds", options.settings.rounds)->capture_default_str();
  app.add_option("--batch-s", options.settings.batch_s, "seconds of a contender in a round")
      ->capture_default_str();
  app.add_option("--quiet-s", options.settings.quiet_s,
                 "wait up to so long before each round for an idle machine")
      ->capture_default_str();
  app.add_option("--engines", options.engines, "posix.engine of Towline's contenders")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--only", options.only, "contenders to run")->delimiter(',');
  app.add_option("--without", options.without, "contenders to leave out")->delimiter(',');
  app.add_option("--cells", options.cells, "OP:BLOCK:COUNT, such as READ:4k:1024")->delimiter(',');
  app.add_option("--nixl-python", options.nixl_python,
                 "interpreter that peers/nixl/setup printed; without it no peer");
  app.add_option("--nixl-script", options.nixl_script)->capture_default_str();
  app.add_option("--json", options.json_file, "write every sample to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    return bench::compare(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "towline_bench_storage: {}\n", error.what());
    return 2;
  }
}

// towline_bench_storage: moves block lists between memory and one file by bare limits, by fio, by NIXL and by
// Towline, interleaved in one run, and prints GB/s and ratios.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>

#include "p2p/comparison.h"
#include "store.h"

namespace bench {
namespace {

struct Options : ComparisonOptions {
  bool direct = false;
  bool with_fio = false;
  std::string folder = ".";
  std::string limit;
  std::string fill = "64k";
  std::vector<std::string> engines = {"auto"};
};

std::vector<Cell> all_cells(std::size_t most_bytes) {
  std::vector<Cell> cells;
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

int compare_files(const Options& options) {
  const std::size_t span = parse_size(options.span);
  const std::size_t limit = options.limit.empty() ? span : std::min(span, parse_size(options.limit));
  Store store(options.folder, span, parse_size(options.fill), options.direct);
  Contenders all;
  add_limits(store, all);
  if (options.with_fio) add_fio(store, all);
  if (!options.nixl_python.empty()) add_nixl_files(options.nixl_python, options.nixl_script, store, all);
#ifdef BENCH_HAS_TOWLINE
  add_towline(store, options.engines, all);
#endif
  return compare(chosen_cells(options, all_cells(limit)), span, set_up(std::move(all), options), options,
                 {{"direct", options.direct}});
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  bench::Options options;
  options.nixl_script = BENCH_NIXL_SCRIPT;
  CLI::App app{"Bandwidth between memory and a file: bare limits, fio, NIXL and Towline side by side"};
  app.add_flag("--direct", options.direct, "past the page cache");
  app.add_flag("--fio", options.with_fio, "fio too, where it is installed");
  app.add_option("--folder", options.folder, "where the file is made")->capture_default_str();
  app.add_option("--fill", options.fill, "bytes of each write that makes the file")->capture_default_str();
  app.add_option("--limit", options.limit, "leave cells of more bytes out; the span by default");
  app.add_option("--engines", options.engines, "tuning.posix.engine of Towline's contenders")
      ->delimiter(',')
      ->capture_default_str();
  bench::add_options(app, options, "bytes of the file");
  CLI11_PARSE(app, argc, argv);
  try {
    return bench::compare_files(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "towline_bench_storage: {}\n", error.what());
    return 2;
  }
}

// towline_bench_p2p: moves block lists between two processes of one host by bare limits, by the peer and by
// Towline, all interleaved in one run, and prints GB/s and ratios. Started again as `target`, it is the
// passive process.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "comparison.h"
#include "contender.h"
#include "peer.h"
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

int compare_processes(const ComparisonOptions& options) {
  const std::size_t span = parse_size(options.span);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  ChildProcess target({self, "target", "--span", options.span});
  Session session{span, Memory::anonymous(span), &target};
  Contenders all;
  for (const Family& family : families()) family.add(session, all);
  if (!options.nixl_python.empty()) add_nixl(options.nixl_python, options.nixl_script, span, all);
  return compare(chosen_cells(options, default_cells(span)), span, set_up(std::move(all), options), options,
                 Json::object());
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  bench::ComparisonOptions options;
  options.nixl_script = BENCH_NIXL_SCRIPT;
  CLI::App app{"Bandwidth between two processes of one host: bare limits, NIXL and Towline side by side"};
  bool quick = false;
  app.add_flag("--quick", quick, "about one minute: three rounds, short batches");
  bench::add_options(app, options, "bytes that blocks are drawn from, on each side");
  auto* target =
      app.add_subcommand("target", "the passive process; started by the program itself")->group("");
  target->add_option("--span", options.span);
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    options.settings.rounds = 3;
    options.settings.batch_s = 0.004;
  }
  try {
    if (target->parsed()) return bench::run_target(bench::parse_size(options.span));
    return bench::compare_processes(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "towline_bench_p2p: {}\n", error.what());
    return 2;
  }
}

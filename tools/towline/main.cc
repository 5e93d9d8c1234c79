// The towline command: info, metrics, config, bench, replay, cp, ls, serve, completions.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <towline/towline.hpp>

#include "bench/collective.h"
#include "bench/collective_peer.h"
#include "bench/fabric.h"
#include "bench/initiator.h"
#include "bench/target.h"
#include "commands.h"
#include "failure.h"
#include "json_output.h"
#include "options.h"
#include "process.h"
#include "replay/decode.h"
#include "replay/prefill.h"
#include "signals.h"
#include "streams.h"

namespace {

constexpr int kFailedExit = 1;
constexpr int kUsageExit = 2;
constexpr int kInterruptedExit = 130;

// Whether the command line has --json, also if the rest of it makes no sense. A flag may have a value.
bool asks_for_json(int argc, char** argv) {
  constexpr std::string_view kFlag = "--json";
  return std::any_of(argv + 1, argv + argc, [&](std::string_view word) {
    if (!word.starts_with(kFlag)) return false;
    const std::string value = CLI::detail::to_lower(std::string{word.substr(kFlag.size())});
    const auto off = {"=false", "=off", "=no", "=disable", "=f", "=n", "=0", "=-"};
    return value.empty() || (value.front() == '=' && std::ranges::find(off, value) == off.end());
  });
}

// Processes that a command starts are this program again.
int run_as_worker(const std::string& work) {
  if (work == "replay-prefill") return tool::run_worker(tool::replay::run_prefill);
  if (work == "replay-decode") return tool::run_worker(tool::replay::run_decode);
  if (work == "bench-initiator") return tool::run_worker(tool::bench::run_initiator);
  if (work == "bench-collective-rank") return tool::run_worker(tool::bench::run_collective_rank);
  if (const std::string_view peer = "bench-mpi-peer:"; work.starts_with(peer))
    return tool::bench::run_mpi_peer(work.substr(peer.size()));
  if (work == "bench-fabric-owner") return tool::run_worker(tool::bench::run_fabric_owner);
  if (work == "bench-fabric-mover") return tool::run_worker(tool::bench::run_fabric_mover);
  if (work == "bench-target") return tool::run_worker(tool::bench::run_target);
  throw tool::Failure{"no such worker: " + work};
}

int run(int argc, char** argv, bool json) {
  tool::CommonOptions common;
  CLI::App app{"Moves AI state between memories, processes and hosts.", "towline"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string{"towline "} + std::string{towline::version()});
  app.footer(
      "Examples:\n"
      "  towline info\n"
      "  towline metrics --watch\n"
      "  towline bench --sizes 64KiB,1MiB\n"
      "  towline replay --requests 24\n"
      "  towline cp peer:10.0.0.7:7700 /data/kv.bin --verify\n"
      "towline COMMAND --help says more.\n\n"
      "Exit codes: 0 done, 1 failed, 2 a command line that makes no sense, 130 interrupted.\n"
      "If the reader of its output goes away, SIGPIPE ends it; a shell reports that as 141.\n"
      "With --json, a failure is an object with \"error\" and \"exit_code\" on standard output as well.");
  bool no_color = false;
  std::string no_color_variable;  // no-color.org: any value that is not empty counts
  app.add_flag("--no-color", no_color, "Write without colour, as with NO_COLOR set");
  app.add_option("--no-color-variable", no_color_variable)->envname("NO_COLOR")->group("");
  app.parse_complete_callback([&] {
    const bool colour = !no_color && no_color_variable.empty();
    common.output = tool::Terminal{stdout, colour};
    common.errors = tool::Terminal{stderr, colour};
  });
  tool::add_commands(app, common);
  const auto named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty()) {
    const std::string message = fmt::format("no command '{}'; towline --help lists them", argv[1]);
    tool::tell(stderr, fmt::format("towline: error: {}\n", message));
    if (json) tool::print_json_failure(message, kUsageExit);
    return kUsageExit;
  }
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) == 0) return 0;  // help, or the version
    if (json) tool::print_json_failure(error.what(), kUsageExit);
    return kUsageExit;
  }
}

}  // namespace

int main(int argc, char** argv) {
  tool::fill_closed_streams();
  tool::write_limit_is_an_error();
  tool::children_can_be_waited_for();
  const bool json = argc > 1 && asks_for_json(argc, argv);
  try {
    if (argc == 3 && std::string_view{argv[1]} == "worker") return run_as_worker(argv[2]);
    const int code = run(argc, argv, json);
    tool::finish_output(stdout);
    return code;
  } catch (const tool::Interrupted&) {
    tool::tell(stderr, "\ntowline: interrupted\n");
    if (json) tool::print_json_failure("interrupted", kInterruptedExit);
    return kInterruptedExit;
  } catch (const std::exception& error) {
    tool::tell(stderr, fmt::format("towline: error: {}\n", error.what()));
    if (json) tool::print_json_failure(error.what(), kFailedExit);
    return kFailedExit;
  }
}

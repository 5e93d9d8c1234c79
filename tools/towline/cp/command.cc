#include "cp/command.h"

#include <fmt/format.h>

#include <pwd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <optional>

#include "cp/copy.h"
#include "failure.h"
#include "json_output.h"
#include "units.h"

namespace tool::cp {

namespace {

void run(const CopyOptions& options, const CommonOptions& common) {
  std::optional<ProgressBar> bar;
  std::optional<Phase> shown;
  const CopySummary summary = copy(options, [&](Phase phase, double share, const std::string& text) {
    if (common.json) return;
    if (shown != phase) {
      bar.reset();
      bar.emplace(common.errors, phase == Phase::kCopy ? "copying" : "verifying");
      shown = phase;
    }
    bar->update(share, text);
  });
  bar.reset();
  if (common.json) {
    print_json(summary_json(options, summary), JsonLayout::kIndented);
    return;
  }
  const auto moved = static_cast<double>(summary.bytes - summary.resumed_bytes);
  fmt::print("{} in {}, {}\n", common.output.bold(format_size(moved)), format_duration(summary.seconds),
             format_rate(summary.seconds > 0 ? moved / summary.seconds : 0));
  if (summary.resumed_bytes != 0)
    fmt::print("  and {} that were there from an earlier run\n",
               format_size(static_cast<double>(summary.resumed_bytes)));
  if (!summary.route.empty()) fmt::print("  {}\n", common.output.dim(summary.route));
  if (!summary.checksum.empty())
    fmt::print("  {}: both sides have checksum {}\n", common.output.green("verified"), summary.checksum);
}

// The user's, or empty.
std::string state_home() {
  const passwd* const user = ::getpwuid(::getuid());
  return user != nullptr && user->pw_dir != nullptr && user->pw_dir[0] == '/'
             ? std::string(user->pw_dir) + "/.local/state"
             : std::string();
}

}  // namespace

void add_cp_command(CLI::App& app, CommonOptions& common) {
  auto* command = app.add_subcommand("cp", "Copy between files, objects and the memory of peers");
  auto options = std::make_shared<CopyOptions>();
  auto texts = std::make_shared<std::map<std::string, std::string>>();
  command->add_option("source", options->source, "Where from")->required()->type_name("PLACE");
  command->add_option("destination", options->destination, "Where to")->required()->type_name("PLACE");
  command->add_flag("--verify", options->verify, "Read both sides back, compare them, print their checksum");
  command->add_option("--bytes", (*texts)["bytes"], "Bytes to copy; by default the whole source")
      ->type_name("SIZE");
  command->add_option("--skip", (*texts)["skip"], "Skip this many bytes of the source")->type_name("SIZE");
  command->add_option("--seek", (*texts)["seek"], "Skip this many bytes of the destination, which are kept")
      ->type_name("SIZE");
  command
      ->add_option("--piece", (*texts)["piece"],
                   "Most bytes of one transfer, fewer where they take more than a second; at least 4KiB")
      ->type_name("SIZE")
      ->default_str("64MiB");
  command->add_option("--rate", (*texts)["rate"], "Limit in bytes per second")->type_name("SIZE");
  command->add_flag("--restart", options->restart, "Begin anew, whatever an earlier run has copied");
  command
      ->add_option("--state", options->state,
                   "Path of the journal of copied pieces; '' for none; by default beside the file that is "
                   "written, or for a peer's memory in ~/.local/state/towline")
      ->type_name("FILE");
  command
      ->add_option("--state-home", options->state_home,
                   "Folder for journals of copies into a peer's memory; '' for none")
      ->type_name("FOLDER")
      ->envname("XDG_STATE_HOME")
      ->default_val(state_home());
  command
      ->add_option("--backend", options->backend, "Force one towards the peer; by default the router chooses")
      ->type_name("NAME");
  command->add_option("--timeout", (*texts)["timeout"], "Limit for each piece, and for connecting")
      ->type_name("DURATION")
      ->default_str("60s");
  command->add_flag("--direct", options->direct, "Write the file past the page cache");
  command->add_flag_callback(
      "--no-sync", [options] { options->sync = false; }, "Do not wait until the file is on the device");
  command->add_flag("--json", common.json, "Print the summary as JSON");
  command->footer(
      "A PLACE is\n"
      "  file:PATH or PATH        a file\n"
      "  s3://BUCKET/KEY          an object, also az:// and gs://; docs/storage.md says how its server is "
      "named\n"
      "  gds:PATH                 a file by a backend of its own, also hf3fs: and nixl:\n"
      "  peer:HOST:PORT[/NAME]    memory: the region of that name of the agent listening there, or its N-th "
      "as\n"
      "                           peer:HOST:PORT#N, 0 being the first; `towline serve` makes such ones\n"
      "Only one of the two may be a peer.\n\n"
      "A copy that was broken off goes on where it was when the same command is given again: which pieces "
      "are\n"
      "there is remembered until the copy is whole, in PATH.towline-cp, or for a peer's memory in\n"
      "~/.local/state/towline. If the source has changed since, the peer has restarted, or another copy has\n"
      "gone there from here, all is copied anew.\n\n"
      "Examples:\n"
      "  towline cp peer:10.0.0.7:7700 /data/kv.bin --verify   save a peer's memory\n"
      "  towline cp /data/kv.bin peer:10.0.0.7:7700/kv         load it into its region kv    \n"
      "  towline cp peer:10.0.0.7:7700 s3://cache/kv           directly to an object\n"
      "  towline cp a.bin b.bin --rate 200MB                   a file, without taking the whole disk");
  command->callback([options, texts, &common] {
    const auto size = [&](const char* name, uint64_t& value) {
      if (const std::string& text = (*texts)[name]; !text.empty()) value = parse_size(text);
    };
    size("bytes", options->bytes);
    if (options->bytes == 0 && !(*texts)["bytes"].empty())
      throw Failure{"--bytes 0: nothing would be copied; without --bytes the whole source is"};
    size("skip", options->skip);
    size("seek", options->seek);
    size("piece", options->piece_bytes);
    size("rate", options->rate);
    if (const std::string& text = (*texts)["timeout"]; !text.empty()) options->timeout = parse_duration(text);
    run(*options, common);
  });
}

}  // namespace tool::cp

// towline_bench_collectives: operations among processes of one host, on the same buffers, by a bare
// shared-memory program, by Towline and by MPI in turns; medians over the rounds of the slowest rank.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "contender.h"
#include "rank.h"
#include "support/idle_machine.h"
#include "support/table.h"
#include "team.h"

namespace bench {
namespace {

// The cells that the project set itself goals for.
const char* const kGoals =
    "all_reduce:8,all_reduce:4k,all_reduce:1m,all_reduce:64m,reduce_scatter:1m,all_gather:64m,all_to_all:64m";

struct Options {
  std::vector<int> ranks = {2, 4};
  std::string cells = kGoals;
  std::string contenders = "bare,towline,mpi";
  int rounds = 31;
  double sample_ms = 10;  // long enough that ways which are found by trying have been found
  bool fresh = false;
  double quiet_s = 0;
  std::string json_file;
  std::string team;    // set for ranks
  std::string folder;  // set for ranks
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Cell cell_of(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return {text, 0};
  char* end = nullptr;
  uint64_t bytes = std::strtoull(text.c_str() + colon + 1, &end, 10);
  if (*end == 'k') bytes <<= 10;
  if (*end == 'm') bytes <<= 20;
  return {text.substr(0, colon), bytes};
}

std::string size_text(uint64_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= 1 << 10) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

// Starts the ranks, under mpirun where MPI takes part, and reads what rank 0 prints.
bool measure(const Options& options, int ranks, std::vector<nlohmann::json>& results) {
  const std::string team = fmt::format("/towline-bench-{}-{}", ::getpid(), ranks);
  const int fd = ::shm_open(team.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(Team::bytes(ranks))) != 0)
    throw std::runtime_error("no shared memory: " + team);
  ::close(fd);
  std::string folder = (std::filesystem::temp_directory_path() / "towline-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no folder " + folder);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string contenders = options.contenders;
  const bool mpi = built_with_mpi() && contenders.find("mpi") != std::string::npos;
  const std::string command = fmt::format(
      "'{}' --team {} --folder {}/store --ranks {} --cells {} --contenders {} --rounds {} --sample-ms {}{}",
      self, team, folder, ranks, options.cells, contenders, options.rounds, options.sample_ms,
      options.fresh ? " --fresh" : "");
  std::string line;
  if (mpi) {
    line = fmt::format("mpirun --oversubscribe --allow-run-as-root -n {} {}", ranks, command);
  } else {
    for (int rank = 1; rank < ranks; ++rank)
      line += fmt::format("TOWLINE_BENCH_RANK={} {} & ", rank, command);
    line += fmt::format("TOWLINE_BENCH_RANK=0 {}; status=$?; wait; exit $status", command);
  }
  std::FILE* pipe = ::popen(line.c_str(), "r");
  std::string text;
  char buffer[65536];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) {
    text += buffer;
    if (!text.ends_with('\n')) continue;
    if (text.starts_with("{")) results.push_back(nlohmann::json::parse(text));
    text.clear();
  }
  const bool good = pipe != nullptr && ::pclose(pipe) == 0;
  ::shm_unlink(team.c_str());
  std::filesystem::remove_all(folder);
  return good;
}

void print(const std::vector<nlohmann::json>& results, const std::vector<std::string>& contenders) {
  Rows rows = {{"ranks", "operation", "size"}};
  for (const std::string& name : contenders) rows[0].push_back(name + " us");
  for (const std::string& name : contenders)
    if (name != "towline") rows[0].push_back(name + " / towline");
  for (const nlohmann::json& result : results) {
    std::vector<std::string> row = {std::to_string(result["ranks"].get<int>()), result["operation"],
                                    size_text(result["bytes"])};
    const nlohmann::json& us = result["us"];
    for (const std::string& name : contenders)
      row.push_back(us.contains(name) ? fmt::format("{:.2f}", us[name]["median"].get<double>()) : "-");
    for (const std::string& name : contenders) {
      if (name == "towline") continue;
      row.push_back(us.contains(name) && us.contains("towline")
                        ? fmt::format("{:.2f}", us[name]["median"].get<double>() /
                                                    us["towline"]["median"].get<double>())
                        : "-");
    }
    rows.push_back(row);
  }
  fmt::print("{}", render(rows));
}

int compare(const Options& options) {
  std::vector<nlohmann::json> results;
  bool good = true;
  for (const int ranks : options.ranks) {
    if (options.quiet_s > 0) wait_until_quiet(options.quiet_s);
    good = measure(options, ranks, results) && good;
  }
  print(results, split(options.contenders));
  if (!options.json_file.empty()) std::ofstream(options.json_file) << nlohmann::json(results).dump(1) << '\n';
  if (!good) fmt::print(stderr, "a rank failed or found a wrong result\n");
  return good ? 0 : 1;
}

int rank_of_environment() {
  for (const char* name : {"TOWLINE_BENCH_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Options options;
  CLI::App app{"Collective operations on one host: a bare program, Towline and MPI in turns"};
  app.add_option("--ranks", options.ranks, "processes, one table part each")->delimiter(',');
  app.add_option("--cells", options.cells, "operation:size,..., sizes with k or m: of the larger side");
  app.add_option("--contenders", options.contenders, "of bare, towline, towline_tcp, mpi");
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, bench::kMostRounds));
  app.add_option("--sample-ms", options.sample_ms, "a sample is as many calls as take so long");
  app.add_flag("--fresh", options.fresh, "every rank writes its input before each call, which is not timed");
  app.add_option("--quiet-s", options.quiet_s, "wait at most so long for an idle machine");
  app.add_option("--json", options.json_file, "keep every sample in this file");
  app.add_option("--team", options.team)->group("");
  app.add_option("--folder", options.folder)->group("");
  CLI11_PARSE(app, argc, argv);
  if (options.team.empty()) return bench::compare(options);
  bench::Plan plan;
  for (const std::string& cell : bench::split(options.cells)) plan.cells.push_back(bench::cell_of(cell));
  plan.contenders = bench::split(options.contenders);
  plan.rounds = options.rounds;
  plan.sample_s = options.sample_ms * 1e-3;
  plan.fresh = options.fresh;
  return bench::run_rank(plan, options.team, options.folder, bench::rank_of_environment(),
                         options.ranks.front());
}

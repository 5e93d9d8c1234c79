#include "bench/collective.h"

#include <fmt/format.h>
#include <towline/collectives.h>
#include <towline/limits.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "failure.h"
#include "json_output.h"
#include "process.h"
#include "units.h"

namespace tool::bench {
namespace {

using nlohmann::json;

// send_recv: every rank sends to the next one and receives from the one before, at once.
constexpr const char* kOperations[] = {"barrier",    "all_reduce",   "reduce",         "broadcast",
                                       "all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_v",
                                       "gather",     "scatter",      "all_to_all",     "all_to_all_v",
                                       "send_recv"};

// The folder where ranks meet; removed with its contents.
class Meeting {
 public:
  Meeting() : folder_((std::filesystem::temp_directory_path() / "towline-bench-XXXXXX").string()) {
    if (::mkdtemp(folder_.data()) == nullptr) throw Failure{fmt::format("cannot make a folder {}", folder_)};
  }
  ~Meeting() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Meeting(const Meeting&) = delete;
  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

// The peers that are installed, by their name in the table.
std::vector<std::string> present(const json& peers) {
  std::vector<std::string> names;
  for (const auto& [name, what] : peers.items())
    if (what.contains("version")) names.push_back(name);
  return names;
}

std::string render(const json& rows, const json& peers, const Terminal& terminal) {
  using enum Table::Align;
  std::vector<Table::Column> columns = {{"op", kLeft}, {"ranks"}, {"size"},           {"p50"},
                                        {"p99"},       {"max"},   {"algorithm GB/s"}, {"bus GB/s"}};
  const std::vector<std::string> names = present(peers);
  for (const std::string& name : names) {
    columns.push_back({name + " p50"});
    columns.push_back({name + " p99"});
    columns.push_back({"times"});
  }
  const bool shared = !rows.empty() && rows.front().contains("by");  // with NCCL, by size
  if (shared) columns.push_back({"by", kLeft});
  columns.push_back({"error"});
  columns.push_back({"check", kLeft});
  Table table{std::move(columns)};
  for (const json& row : rows) {
    const uint64_t wrong = row.at("wrong_elements");
    const std::string check = row.at("checked_elements") == 0 ? terminal.dim("off")
                              : wrong == 0                    ? terminal.green("ok")
                                           : terminal.red(fmt::format("{} elements wrong", wrong));
    std::vector<std::string> cells = {
        row.at("op"),
        row.at("ranks").dump(),
        format_size(row.at("size")),
        format_duration(row.at("p50_s")),
        format_duration(row.at("p99_s")),
        format_duration(row.at("max_s")),
        fmt::format("{:.2f}", row.at("algorithm_bytes_per_s").get<double>() / 1e9),
        fmt::format("{:.2f}", row.at("bus_bytes_per_s").get<double>() / 1e9)};
    for (const std::string& name : names) {
      const json theirs = row.at("peers").value(name, json());
      cells.push_back(theirs.is_null() ? "-" : format_duration(theirs.at("p50_s")));
      cells.push_back(theirs.is_null() ? "-" : format_duration(theirs.at("p99_s")));
      cells.push_back(theirs.is_null() ? "-"
                                       : fmt::format("{:.2f}", theirs.at("p50_s").get<double>() /
                                                                   row.at("p50_s").get<double>()));
    }
    if (shared) cells.push_back(row.at("by"));
    cells.push_back(fmt::format("{:.0e}", row.at("largest_relative_error").get<double>()));
    cells.push_back(check);
    table.add(std::move(cells));
  }
  std::string text = table.render(terminal);
  for (const auto& [name, what] : peers.items())
    text += what.contains("version")
                ? fmt::format("{}: {}\n", name, what.at("version").get<std::string>())
                : fmt::format("{}: not here: {}\n", name, what.at("problem").get<std::string>());
  return text;
}

}  // namespace

std::vector<std::string> parse_collectives(const std::string& text) {
  std::vector<std::string> operations;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, end - at);
    at = end + 1;
    bool known = false;
    for (const char* operation : kOperations) {
      if (name != "all" && name != operation) continue;
      known = true;
      operations.emplace_back(operation);
    }
    if (!known) {
      std::string names = "all";
      for (const char* operation : kOperations) names += fmt::format(", {}", operation);
      throw Failure{fmt::format("'{}' is not a collective operation: {}", name, names)};
    }
  }
  return operations;
}

void choose_memory(CollectiveOptions& options, const std::string& kind) {
  const auto asked = [&](const char* peer) { return std::ranges::count(options.peers, peer) != 0; };
  if (kind != "shared" && kind != "vram")
    throw Failure{fmt::format("collective operations take --memory shared or vram, not {}", kind)};
  options.vram = kind == "vram";
  if (!options.vram) {
    if (asked("nccl")) throw Failure{"nccl moves memory of GPUs: --memory vram is needed"};
    if (!options.nccl_from.empty())
      throw Failure{"--nccl-from is for memory of GPUs: --memory vram is needed"};
    return;
  }
  if (options.tcp) throw Failure{"--tcp is for host memory"};
  if (options.peers == CollectiveOptions{}.peers) options.peers = {"nccl"};
  if (asked("gloo") || asked("mpi")) throw Failure{"with --memory vram the peer is nccl, or none"};
}

std::vector<uint64_t> uneven_parts(uint64_t count, uint32_t ranks) {
  std::vector<uint64_t> parts;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    parts.push_back(rank % 2 == 0 ? count - count / 2 : count + count / 2);
  return parts;
}

double bus_factor(const std::string& operation, uint32_t ranks) {
  const double n = ranks;
  if (operation == "all_reduce") return 2 * (n - 1) / n;
  if (operation == "reduce" || operation == "broadcast" || operation == "send_recv") return 1;
  return (n - 1) / n;
}

uint64_t buffer_bytes(const CollectiveOptions& options) {
  if (options.sizes.empty() || options.ranks.empty()) return 0;
  const uint64_t largest = *std::ranges::max_element(options.sizes);
  const uint64_t buffers = 2 * *std::ranges::max_element(options.ranks) * (1 + options.peers.size());
  return buffers != 0 && largest > UINT64_MAX / buffers ? UINT64_MAX : buffers * largest;
}

void run_collective_bench(const CollectiveOptions& options, const CommonOptions& common) {
  // Checked before anything starts: on a machine that runs out of memory the kernel kills unrelated programs.
  if (const uint64_t needed = buffer_bytes(options), free = towline_memory_available(); needed > free) {
    throw Failure{
        fmt::format("inputs and outputs of all ranks, and as much for each of {} peers, take {}, and {} of "
                    "memory are free: "
                    "give smaller sizes, fewer ranks or --peers none",
                    options.peers.size(), format_size(static_cast<double>(needed)),
                    format_size(static_cast<double>(free)))};
  }
  json results = json::array();
  json peers = json::object();
  ProgressBar bar(common.errors, "bench");
  const size_t total = options.ranks.size() * options.operations.size() * options.sizes.size();
  for (const uint32_t size : options.ranks) {
    if (size < 1 || size > 256) throw Failure{fmt::format("{} ranks: 1 to 256 can be measured", size)};
    const Meeting meeting;
    Crew crew;
    for (uint32_t rank = 0; rank < size; ++rank)
      crew.start(fmt::format("rank {}", rank), "bench-collective-rank",
                 {{"options", options}, {"rank", rank}, {"size", size}, {"folder", meeting.folder()}});
    for (uint32_t done = 0; done < size;) {
      const Crew::Message message = crew.receive(std::chrono::minutes(10));
      if (message.child == nullptr) throw Failure{"the ranks sent nothing for 10 minutes"};
      if (message.content.contains("done")) ++done;
      // With several numbers of ranks: the first one at which the peer could not start.
      if (message.content.contains("peers"))
        for (const auto& [name, what] : message.content.at("peers").items())
          if (!peers.contains(name) || what.contains("problem")) peers[name] = what;
      if (!message.content.contains("row")) continue;
      const json& row = message.content.at("row");
      results.push_back(row);
      bar.update(static_cast<double>(results.size()) / static_cast<double>(total),
                 fmt::format("{} {}", row.at("op").get<std::string>(), format_size(row.at("size"))));
    }
    crew.finish();
  }
  bar.clear();
  if (common.json) {
    print_json({{"options", options}, {"peers", peers}, {"rows", results}}, JsonLayout::kIndented);
  } else {
    fmt::print("{}", render(results, peers, common.output));
  }
  for (const json& row : results)
    if (row.at("wrong_elements") != 0) throw Failure{"a result is wrong"};
}

}  // namespace tool::bench

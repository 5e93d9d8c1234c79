#include "bench/collective.h"

#include <fmt/format.h>
#include <towline/collectives.h>

#include <cstdlib>
#include <filesystem>

#include "failure.h"
#include "process.h"
#include "units.h"

namespace tool::bench {
namespace {

using nlohmann::json;

constexpr const char* kOperations[] = {"barrier",        "all_reduce", "reduce",  "broadcast", "all_gather",
                                       "reduce_scatter", "gather",     "scatter", "all_to_all"};

// Where ranks meet; removed with what they left there.
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
  [[nodiscard]] std::string store() const { return "file:" + folder_ + "/store"; }

 private:
  std::string folder_;
};

std::string render(const json& rows, const Terminal& terminal) {
  using enum Table::Align;
  Table table{{{"op", kLeft},
               {"ranks"},
               {"size"},
               {"p50"},
               {"p99"},
               {"max"},
               {"algorithm GB/s"},
               {"bus GB/s"},
               {"error"},
               {"check", kLeft}}};
  for (const json& row : rows) {
    const uint64_t wrong = row.at("wrong_elements");
    const std::string check = row.at("checked_elements") == 0 ? terminal.dim("off")
                              : wrong == 0                    ? terminal.green("ok")
                                           : terminal.red(fmt::format("{} elements wrong", wrong));
    table.add({row.at("op"), row.at("ranks").dump(), format_size(row.at("size")),
               format_duration(row.at("p50_s")), format_duration(row.at("p99_s")),
               format_duration(row.at("max_s")),
               fmt::format("{:.2f}", row.at("algorithm_bytes_per_s").get<double>() / 1e9),
               fmt::format("{:.2f}", row.at("bus_bytes_per_s").get<double>() / 1e9),
               fmt::format("{:.0e}", row.at("largest_relative_error").get<double>()), check});
  }
  return table.render(terminal);
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
      throw Failure{fmt::format("'{}' is no collective operation: {}", name, names)};
    }
  }
  return operations;
}

double bus_factor(const std::string& operation, uint32_t ranks) {
  const double n = ranks;
  if (operation == "all_reduce") return 2 * (n - 1) / n;
  if (operation == "reduce" || operation == "broadcast") return 1;
  return (n - 1) / n;
}

void run_collective_bench(const CollectiveOptions& options, const CommonOptions& common) {
  json results = json::array();
  ProgressBar bar(common.errors, "bench");
  const size_t total = options.ranks.size() * options.operations.size() * options.sizes.size();
  for (const uint32_t size : options.ranks) {
    if (size < 1 || size > 256) throw Failure{fmt::format("{} ranks: 1 to 256 can be measured", size)};
    const Meeting meeting;
    Crew crew;
    for (uint32_t rank = 0; rank < size; ++rank)
      crew.start(fmt::format("rank {}", rank), "bench-collective-rank",
                 {{"options", options}, {"rank", rank}, {"size", size}, {"store", meeting.store()}});
    for (uint32_t done = 0; done < size;) {
      const Crew::Message message = crew.receive(std::chrono::minutes(10));
      if (message.child == nullptr) throw Failure{"nothing was heard from the ranks for 10 minutes"};
      if (message.content.contains("done")) ++done;
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
    fmt::print("{}\n", json{{"options", options}, {"rows", results}}.dump(2));
  } else {
    fmt::print("{}", render(results, common.output));
  }
  for (const json& row : results)
    if (row.at("wrong_elements") != 0) throw Failure{"a result is wrong"};
}

}  // namespace tool::bench

#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "config.h"
#include "failure.h"
#include "json_output.h"
#include "process.h"
#include "replay/summary.h"
#include "samples.h"
#include "streams.h"
#include "units.h"

namespace tool::bench {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kStartsWithin{60'000};
constexpr milliseconds kRowWithin{600'000};

class Bench {
 public:
  Bench(const BenchOptions& options, const CommonOptions& common)
      : options_(options), common_(common), bar_(common.errors, "bench") {
    options_.common.rows = rows_of(options_);
  }

  // Targets only, until Ctrl-C.
  void serve() {
    start_targets();
    json addresses = json::array();
    for (Child* target : targets_)
      addresses.push_back(crew_.expect(*target, "address", kStartsWithin).at("address"));
    std::string list;
    for (const auto& address : addresses) list += (list.empty() ? "" : ",") + address.get<std::string>();
    tell(common_.errors.stream(),
         fmt::format("serving; on the other host: towline bench --connect {}\n", list));
    while (true) (void)crew_.receive(milliseconds{60'000});
  }

  json run() {
    json addresses = options_.connect;
    if (options_.connect.empty()) {
      start_targets();
      for (Child* target : targets_)
        addresses.push_back(crew_.expect(*target, "address", kStartsWithin).at("address"));
    }
    start_initiators();
    tell_all({{"start", addresses}});
    gather("ready", kStartsWithin);
    json rows = json::array();
    for (size_t index = 0; index < options_.common.rows.size(); ++index) {
      const Row& row = options_.common.rows[index];
      bar_.update(static_cast<double>(index) / static_cast<double>(options_.common.rows.size()),
                  fmt::format("{} {} x {}", row.from, format_size(static_cast<double>(row.size)), row.batch));
      tell_all({{"prepare", index}});
      gather("prepared", kRowWithin);
      tell_all({{"go", index}});
      const auto measured = gather("measured", kRowWithin);
      tell_all({{"check", index}});
      const auto checked = gather("checked", kRowWithin);
      rows.push_back(join_row(row, measured, checked));
    }
    tell_all({{"close", true}});  // targets answer while initiators are still there
    (void)gather("closed", kRowWithin);
    crew_.finish();
    bar_.clear();
    return rows;
  }

 private:
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const {
    std::vector<std::pair<std::string, std::string>> result;
    if (!options_.faults.empty()) result.emplace_back("TOWLINE_FAULTS", options_.faults);
    std::string named;
    for (const json& setting : read_settings().at("settings"))
      if (setting.value("name", "") == "plugins") named = setting.value("value", "");
    if (const std::string plugins = plugins_with(options_.common.backend, named); plugins != named)
      result.emplace_back("TOWLINE_PLUGINS", plugins);
    if (!options_.source.empty()) result.emplace_back("TOWLINE_TUNING_TCPX_SOURCE", options_.source);
    return result;
  }

  [[nodiscard]] uint32_t workers() const {
    if (options_.common.workers != 0) return options_.common.workers;
    return std::clamp(std::ranges::max(options_.threads), 1u, 8u);
  }

  void start_targets() {
    for (uint32_t rank = 0; rank < options_.targets; ++rank) {
      const json configuration{
          {"rank", rank},
          {"listen", options_.listen.empty() ? local_address("target", rank)
                                             : address_of_rank("--listen", options_.listen, rank)},
          {"memory_kind", options_.common.target_memory_kind.empty() ? options_.common.memory_kind
                                                                     : options_.common.target_memory_kind},
          {"workers", workers()}};
      targets_.push_back(
          &crew_.start(fmt::format("target {}", rank), "bench-target", configuration, environment()));
    }
  }

  void start_initiators() {
    for (uint32_t rank = 0; rank < options_.common.initiators; ++rank) {
      InitiatorOptions one = options_.common;
      one.rank = rank;
      one.workers = workers();
      one.listen = options_.connect.empty() ? local_address("initiator", rank)
                                            : own_address_towards("--connect", options_.connect.front());
      initiators_.push_back(
          &crew_.start(fmt::format("initiator {}", rank), "bench-initiator", one, environment()));
    }
  }

  void tell_all(const json& message) {
    for (Child* initiator : initiators_) initiator->channel().send(message);
  }

  // The answers of all initiators under `key`.
  std::vector<json> gather(const std::string& key, milliseconds timeout) {
    std::map<Child*, json> answers;
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (answers.size() < initiators_.size()) {
      const auto [child, message] = crew_.receive(milliseconds{1000});
      if (child != nullptr && message.contains(key)) answers[child] = message.at(key);
      if (std::chrono::steady_clock::now() > deadline) {
        throw Failure{
            fmt::format("initiators did not answer within {} s ('{}')", timeout.count() / 1000, key)};
      }
    }
    std::vector<json> list;
    for (Child* initiator : initiators_) list.push_back(answers.at(initiator));
    return list;
  }

  BenchOptions options_;
  const CommonOptions& common_;
  ProgressBar bar_;
  Crew crew_;
  std::vector<Child*> targets_;
  std::vector<Child*> initiators_;
};

std::string memory_of(const InitiatorOptions& each) {
  if (each.target_memory_kind.empty() || each.target_memory_kind == each.memory_kind) return each.memory_kind;
  return fmt::format("{} against {}", each.memory_kind, each.target_memory_kind);
}

// Taken from the first initiator with a product: a sum over all would depend on who owns the GPUs.
void add_product(json& joined, const std::vector<json>& measured) {
  for (const json& one : measured) {
    if (!one.contains("product") || one.at("product").is_null()) continue;
    const json& product = one.at("product");
    const double alone = product.at("tflops_alone");
    const double beside = product.at("tflops_beside");
    joined["product_tflops_alone"] = alone;
    joined["product_tflops_beside"] = beside;
    joined["product_loss"] = alone == 0 ? 0 : 1 - beside / alone;
    double bytes_per_s = 0;
    for (const json& other : measured)
      bytes_per_s += other.at("product").at("bytes_per_s_alone").get<double>();
    joined["bytes_per_s_alone"] = bytes_per_s;
    return;
  }
}

std::string render(const BenchOptions& options, const json& rows, const Terminal& terminal) {
  using enum Table::Align;
  std::string text = terminal.bold(
      fmt::format("{}, {} initiator{}, {} target{}, {} memory, {}\n", options.common.pattern,
                  options.common.initiators, options.common.initiators == 1 ? "" : "s", options.targets,
                  options.targets == 1 ? "" : "s", memory_of(options.common), rows.at(0).value("route", "")));
  if (const std::string price = rows.at(0).value("price", ""); !price.empty())
    text += terminal.dim(fmt::format("a transfer of the first row is {}\n", price));
  std::vector<Table::Column> columns{{"from", kLeft}, {"block"}, {"batch"},   {"threads"}, {"GB/s"},  {"p50"},
                                     {"p99"},         {"max"},   {"a block"}, {"cpu/GB"},  {"target"}};
  const bool beside = !options.common.beside.what.empty();
  if (beside) columns.insert(columns.end(), {{"alone GB/s"}, {"product TFLOP/s"}, {"beside"}, {"loss"}});
  columns.push_back({"check", kLeft});
  Table table{columns};
  for (const json& row : rows) {
    const uint64_t wrong = row.at("wrong_blocks");
    const std::string check = row.at("checked_blocks") == 0 ? terminal.dim("off")
                              : wrong == 0                  ? terminal.green("ok")
                                           : terminal.red(fmt::format("{} blocks wrong", wrong));
    std::vector<std::string> cells{row.at("from"),
                                   format_size(row.at("size")),
                                   row.at("batch").dump(),
                                   row.at("threads").dump(),
                                   fmt::format("{:.2f}", row.at("bytes_per_s").get<double>() / 1e9),
                                   format_duration(row.at("p50_s")),
                                   format_duration(row.at("p99_s")),
                                   format_duration(row.at("max_s")),
                                   format_duration(row.at("block_s")),
                                   format_duration(row.at("initiator_cpu_s_per_gb")),
                                   format_duration(row.at("target_cpu_s_per_gb"))};
    if (beside)
      for (const std::string& cell : {fmt::format("{:.2f}", row.at("bytes_per_s_alone").get<double>() / 1e9),
                                      fmt::format("{:.0f}", row.at("product_tflops_alone").get<double>()),
                                      fmt::format("{:.0f}", row.at("product_tflops_beside").get<double>()),
                                      fmt::format("{:.1f} %", row.at("product_loss").get<double>() * 100)})
        cells.push_back(cell);
    cells.push_back(check);
    table.add(cells);
  }
  return text + table.render(terminal);
}

}  // namespace

std::string plugins_with(const std::string& backend, const std::string& named) {
  if (backend.empty() || named.empty()) return named + backend;
  return named + "," + backend;
}

std::vector<Row> rows_of(const BenchOptions& options) {
  if (!options.batches.empty() && options.batches.size() != 1 &&
      options.batches.size() != options.sizes.size()) {
    throw Failure{fmt::format("{} batches for {} sizes: give one for each, or one for all",
                              options.batches.size(), options.sizes.size())};
  }
  std::vector<Row> rows;
  for (const std::string& from : options.storage.places.empty()
                                     ? sides_of(options.from, {"initiator", "target"})
                                     : storage_sides_of(options.from)) {
    for (size_t at = 0; at < options.sizes.size(); ++at) {
      const uint64_t size = options.sizes[at];
      if (size == 0) throw Failure{"a block of 0 bytes measures nothing"};
      const uint64_t batch = options.batches.empty() ? default_batch(size)
                                                     : options.batches[options.batches.size() == 1 ? 0 : at];
      if (batch == 0) throw Failure{"a batch of 0 blocks measures nothing"};
      for (const uint32_t threads : options.threads) {
        if (threads == 0 || threads > 64) throw Failure{"threads: 1 to 64"};
        rows.push_back({from, size, batch, threads});
      }
    }
  }
  return rows;
}

json join_row(const Row& row, const std::vector<json>& measured, const std::vector<json>& checked) {
  json joined = row;
  Samples samples;
  double bytes = 0;
  double wall_s = 0;
  double cpu_s = 0;
  uint64_t iterations = 0;
  std::map<uint32_t, std::pair<double, double>>
      targets;  // CPU seconds before and after, as the first and the last initiator saw them
  for (const json& one : measured) {
    samples.add(Samples{one.at("samples_s").get<std::vector<double>>()});
    bytes += one.at("bytes").get<double>();
    wall_s = std::max(wall_s, one.at("wall_s").get<double>());
    cpu_s += one.at("cpu_s").get<double>();
    iterations += one.at("iterations").get<uint64_t>();
    for (const json& target : one.at("targets")) {
      const double before = target.at("before_s");
      const double after = target.at("after_s");
      const auto [place, made] = targets.try_emplace(target.at("target"), before, after);
      if (!made)
        place->second = {std::min(place->second.first, before), std::max(place->second.second, after)};
    }
  }
  double target_cpu_s = 0;
  for (const auto& [target, usage] : targets) target_cpu_s += usage.second - usage.first;
  uint64_t blocks = 0;
  uint64_t wrong = 0;
  for (const json& one : checked) {
    blocks += one.at("blocks").get<uint64_t>();
    wrong += one.at("wrong").get<uint64_t>();
  }
  joined["iterations"] = iterations;
  joined["bytes"] = static_cast<uint64_t>(bytes);
  joined["wall_s"] = wall_s;
  joined["bytes_per_s"] = bytes / wall_s;
  joined["p50_s"] = samples.median();
  joined["p99_s"] = samples.quantile(0.99);
  joined["max_s"] = samples.max();
  joined["block_s"] = samples.median() / static_cast<double>(row.batch);
  joined["initiator_cpu_s_per_gb"] = cpu_s / (bytes / 1e9);
  joined["target_cpu_s_per_gb"] = target_cpu_s / (bytes / 1e9);
  joined["checked_blocks"] = blocks;
  joined["wrong_blocks"] = wrong;
  add_product(joined, measured);
  joined["route"] = measured.empty() ? "" : replay::describe_route(measured.front().at("route"));
  joined["price"] = measured.empty() ? "" : replay::describe_price(measured.front().at("route"));
  return joined;
}

void run_bench(const BenchOptions& options, const CommonOptions& common) {
  if (!options.storage.places.empty())
    return run_storage_bench(options.storage,
                             storage_rows(options.storage.places, rows_of(options), options.depths), common);
  if (!options.listen.empty()) return Bench{options, common}.serve();
  check_pattern(parse_pattern(options.common.pattern), options.common.initiators, options.targets);
  const json rows = Bench{options, common}.run();
  if (common.json) {
    print_json({{"options", options.common}, {"targets", options.targets}, {"rows", rows}},
               JsonLayout::kIndented);
  } else {
    fmt::print("{}", render(options, rows, common.output));
  }
  for (const json& row : rows) {
    if (row.at("wrong_blocks") != 0) throw Failure{"blocks arrived with wrong bytes"};
  }
}

}  // namespace tool::bench

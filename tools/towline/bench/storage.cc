#include "bench/storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "bench/storage_place.h"
#include "failure.h"
#include "json_output.h"
#include "replay/summary.h"
#include "samples.h"
#include "storage_schemes.h"
#include "terminal.h"
#include "units.h"
#include "usage.h"

namespace tool::bench {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using towline::Status;

constexpr uint64_t kEpoch = 1;
constexpr uint32_t kMostDepth = 1024;

towline::Sync parse_sync(const std::string& text) {
  if (text == "none") return towline::Sync::kNone;
  if (text == "data") return towline::Sync::kData;
  if (text == "full") return towline::Sync::kFull;
  throw Failure{fmt::format("no --sync '{}': none, data or full", text)};
}

void fail_if(Status status, const std::string& what, const towline::Transfer& transfer) {
  if (!is_error(status)) return;
  const towline::Result result = transfer.result();
  const std::string where =
      result.failures().empty()
          ? ""
          : fmt::format(", from block {} of the request on ({})", result.failures()[0].first,
                        vendor_code_text(result.failures()[0].vendor_code));
  throw Failure{fmt::format("{}: {}{}", what, status_text(status), where)};
}

Status run_once(const towline::Transfer& transfer) {
  Status status = transfer.post();
  while (status == Status::kAgain) status = transfer.post();
  return status == Status::kInProgress ? transfer.wait() : status;
}

}  // namespace

// The state of one thread: files, memory, and for each request in flight a transfer (two in mixed rows).
struct StorageRun::Driver {
  struct Request {
    std::vector<uint32_t> picks;  // blocks of the files
    uint64_t first = 0;           // its first block in memory
    bool write = false;
    std::optional<towline::Transfer> transfer;
    steady_clock::time_point posted_at{};
  };

  std::optional<Buffer> buffer;
  std::vector<towline::Region> regions;
  std::vector<std::unique_ptr<Scratch>> scratch;
  std::optional<towline::BlockList> mine;
  std::optional<towline::BlockList> theirs;
  std::vector<Request> requests;
  uint64_t turns = 0;  // requests posted so far; turns % requests.size() is the next

  std::vector<double> samples;
  uint64_t iterations = 0;
  Status failure = Status::kOk;
  size_t failed = 0;

  [[nodiscard]] Area area(const Request& request, uint64_t block, uint64_t identity) const {
    return {.base = reinterpret_cast<uint64_t>(buffer->data()) + request.first * block,
            .stride = block,
            .length = block,
            .identity = identity};
  }
  // Moves a request's blocks in either direction, outside the measurement.
  [[nodiscard]] Status move(const towline::Agent& agent, bool write, const Request& request) const {
    std::vector<uint64_t> here(request.picks.size());
    for (size_t i = 0; i < here.size(); ++i) here[i] = request.first + i;
    const towline::PickedBlocks memory = (*mine)[here];
    const towline::PickedBlocks stored = (*theirs)[request.picks];
    return run_once(agent.transfer(write ? memory : stored, write ? stored : memory));
  }
  void run(const StorageOptions& options, uint32_t depth);
  [[nodiscard]] bool post_next();
  [[nodiscard]] bool finish_oldest(bool spin, uint64_t oldest);
};

bool StorageRun::Driver::post_next() {
  Request& request = requests[turns % requests.size()];
  request.posted_at = steady_clock::now();
  Status status = request.transfer->post();
  while (status == Status::kAgain) status = request.transfer->post();
  if (is_error(status)) {
    failure = status;
    failed = turns % requests.size();
    return false;
  }
  ++turns;
  return true;
}

bool StorageRun::Driver::finish_oldest(bool spin, uint64_t oldest) {
  Request& request = requests[oldest % requests.size()];
  Status status = Status::kInProgress;
  while (status == Status::kInProgress) status = spin ? request.transfer->poll() : request.transfer->wait();
  if (is_error(status)) {
    failure = status;
    failed = oldest % requests.size();
    return false;
  }
  if (samples.size() < kMostSamples) {
    // It may have ended before this look.
    const towline::Result result = request.transfer->result();
    samples.push_back(result.posted_at_ns != 0
                          ? static_cast<double>(result.ended_at_ns - result.posted_at_ns) * 1e-9
                          : seconds_between(request.posted_at, steady_clock::now()));
  }
  ++iterations;
  return true;
}

// Keeps `depth` requests in flight; in mixed rows reads and writes in turn.
void StorageRun::Driver::run(const StorageOptions& options, uint32_t depth) {
  const auto start = steady_clock::now();
  const auto enough = [&] {
    if (options.iterations > 0) return iterations >= options.iterations;
    return iterations >= 3 && seconds_between(start, steady_clock::now()) >= options.seconds;
  };
  uint64_t oldest = turns;
  while (!enough()) {
    while (turns - oldest < depth) {
      if (!post_next()) return;
    }
    if (!finish_oldest(options.spin, oldest++)) return;
  }
  while (oldest != turns) {
    if (!finish_oldest(options.spin, oldest++)) return;
  }
}

std::vector<std::string> storage_sides_of(const std::string& from) {
  if (from == "mixed") return {from};
  try {
    return sides_of(from, {"memory", "storage"});
  } catch (const Failure&) {
    throw Failure{fmt::format("--from {}: memory, storage, both or mixed", from)};
  }
}

StorageRun::StorageRun(const StorageOptions& options, const StorageRow& row) : options_(options), row_(row) {
  const std::string from = storage_sides_of(row.row.from).front();
  if (options.files == 0 || options.files > 1024) throw Failure{"files: 1 to 1024 per thread"};
  if (row.depth == 0 || row.depth > kMostDepth) throw Failure{"depths: 1 to 1024 requests in flight"};
  const std::string& engine = options.engine;
  if (engine != "auto" && engine != "uring" && engine != "aio" && engine != "threads" && engine != "pread")
    throw Failure{fmt::format("no --engine '{}': auto, uring, aio, threads or pread", engine)};
  const Place place(row.place);
  agent_ = std::make_unique<towline::Agent>(
      "bench-storage",
      towline::AgentOptions{
          .workers = std::clamp(row.row.threads, 1u, 8u),
          .listen = "none",
          .config = place.config() + fmt::format("[tuning.posix]\nengine = \"{}\"\n", options.engine)});
  const uint64_t block = row.row.size;
  Row all = row.row;
  all.batch *= requests();
  // An object is written whole: each request has one of its own.
  const uint64_t files = place.objects ? requests() : options.files;
  const uint64_t blocks_of_file =
      place.objects ? row.row.batch : (area_blocks(all, options.span_bytes) + files - 1) / files;
  for (uint32_t thread = 0; thread < row.row.threads; ++thread) {
    auto driver = std::make_unique<Driver>();
    driver->buffer.emplace(BufferKind::kPrivate, all.batch * block);
    driver->regions.push_back(agent_->register_memory(towline::dram(driver->buffer->bytes())));
    driver->mine.emplace(
        agent_->block_list(towline::Blocks::at(driver->buffer->data(), block).repeat(all.batch, block)));
    std::vector<towline::Blocks> blocks;
    for (uint64_t i = 0; i < files; ++i) {
      driver->scratch.push_back(
          std::make_unique<Scratch>(*agent_, place,
                                    towline::StorageOptions{.access = towline::Access::kAll,
                                                            .direct = options.direct,
                                                            .sync = parse_sync(options.sync),
                                                            .bytes = blocks_of_file * block}));
      blocks.push_back(driver->scratch.back()->region().blocks(0, block).repeat(blocks_of_file, block));
    }
    driver->theirs.emplace(agent_->block_list(blocks));
    const auto picks = pick_blocks(
        all, blocks_of_file * files * block,
        {.seed = options.seed, .thread = thread, .sequential = options.sequential || place.objects});
    for (uint64_t i = 0; i < requests(); ++i) {
      Driver::Request request;
      request.first = i * row.row.batch;
      const auto begin = picks.begin() + static_cast<ptrdiff_t>(request.first);
      request.picks.assign(begin, begin + static_cast<ptrdiff_t>(row.row.batch));
      request.write = from == "memory" || (from == "mixed" && i % 2 == 1);
      std::vector<uint64_t> here(row.row.batch);
      for (uint64_t k = 0; k < row.row.batch; ++k) here[k] = request.first + k;
      const towline::PickedBlocks memory = (*driver->mine)[here];
      const towline::PickedBlocks stored = (*driver->theirs)[request.picks];
      request.transfer.emplace(
          agent_->transfer(request.write ? memory : stored, request.write ? stored : memory));
      driver->requests.push_back(std::move(request));
    }
    drivers_.push_back(std::move(driver));
  }
}

StorageRun::~StorageRun() = default;

uint64_t StorageRun::requests() const { return row_.row.from == "mixed" ? row_.depth * 2 : row_.depth; }

uint64_t StorageRun::checked_blocks() const {
  return options_.check ? drivers_.size() * requests() * row_.row.batch : 0;
}

int StorageRun::file() const { return drivers_.front()->scratch.front()->fd(); }

void StorageRun::prepare() {
  const uint64_t block = row_.row.size;
  for (auto& driver : drivers_) {
    driver->samples.reserve(4096);
    for (size_t i = 0; i < driver->requests.size(); ++i) {
      Driver::Request& request = driver->requests[i];
      const Area area = driver->area(request, block, i);
      std::vector<uint32_t> places(request.picks.size());
      for (size_t k = 0; k < places.size(); ++k) places[k] = static_cast<uint32_t>(k);
      fill_blocks(area, places, kEpoch);
      if (request.write) continue;
      fail_if(driver->move(*agent_, true, request), "filling the files", *request.transfer);
      fill_blocks(area, places, kEpoch + 1);
    }
    for (uint64_t i = 0; i < options_.warmup * driver->requests.size(); ++i) {
      const auto& transfer = *driver->requests[i % driver->requests.size()].transfer;
      fail_if(run_once(transfer), "warming up from " + row_.row.from, transfer);
    }
  }
}

json StorageRun::measure() {
  std::barrier begin{static_cast<ptrdiff_t>(drivers_.size())};
  const double cpu_before = cpu_seconds();
  const auto start = steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (size_t thread = 1; thread < drivers_.size(); ++thread) {
      threads.emplace_back([&, thread] {
        begin.arrive_and_wait();
        drivers_[thread]->run(options_, row_.depth);
      });
    }
    begin.arrive_and_wait();
    drivers_[0]->run(options_, row_.depth);
  }
  const double wall_s = seconds_between(start, steady_clock::now());
  const double cpu_s = cpu_seconds() - cpu_before;
  Samples samples;
  uint64_t iterations = 0;
  for (const auto& driver : drivers_) {
    fail_if(driver->failure,
            fmt::format("{} blocks of {} bytes from {}", row_.row.batch, row_.row.size, row_.row.from),
            *driver->requests[driver->failed].transfer);
    samples.add(Samples{driver->samples});
    iterations += driver->iterations;
  }
  const auto bytes = static_cast<double>(iterations * row_.row.batch * row_.row.size);
  json figures = row_.row;
  figures["storage"] = row_.place;
  figures["depth"] = row_.depth;
  figures["iterations"] = iterations;
  figures["bytes"] = static_cast<uint64_t>(bytes);
  figures["wall_s"] = wall_s;
  figures["bytes_per_s"] = bytes / wall_s;
  figures["requests_per_s"] = static_cast<double>(iterations) / wall_s;
  figures["blocks_per_s"] = static_cast<double>(iterations * row_.row.batch) / wall_s;
  figures["p50_s"] = samples.median();
  figures["p99_s"] = samples.quantile(0.99);
  figures["max_s"] = samples.max();
  figures["cpu_s_per_gb"] = cpu_s / (bytes / 1e9);
  figures["route"] = replay::describe_route(drivers_[0]->requests[0].transfer->route());
  return figures;
}

uint64_t StorageRun::count_wrong() {
  if (!options_.check) return 0;
  uint64_t wrong = 0;
  for (auto& driver : drivers_) {
    for (size_t i = 0; i < driver->requests.size(); ++i) {
      const Driver::Request& request = driver->requests[i];
      const Area area = driver->area(request, row_.row.size, i);
      std::vector<uint32_t> places(request.picks.size());
      for (size_t k = 0; k < places.size(); ++k) places[k] = static_cast<uint32_t>(k);
      if (request.write) {
        fill_blocks(area, places, kEpoch + 1);
        fail_if(driver->move(*agent_, false, request), "reading back", *request.transfer);
      }
      wrong += count_wrong_blocks(area, places, kEpoch);
    }
  }
  return wrong;
}

// ---- the command

std::vector<StorageRow> storage_rows(const std::vector<std::string>& places, const std::vector<Row>& rows,
                                     const std::vector<uint32_t>& depths) {
  std::vector<StorageRow> all;
  for (const std::string& place : places) {
    for (const Row& row : rows) {
      for (const uint32_t depth : depths) all.push_back({place, row, depth});
    }
  }
  return all;
}

namespace {

std::string render(const StorageOptions& options, const json& rows, const Terminal& terminal) {
  using enum Table::Align;
  std::string text;
  for (const std::string& place : options.places) {
    const auto first =
        std::find_if(rows.begin(), rows.end(), [&](const json& row) { return row.at("storage") == place; });
    text += terminal.bold(fmt::format("{}, {}, sync {}, {} file{} a thread, {}\n", place,
                                      options.direct ? "direct" : "buffered", options.sync, options.files,
                                      options.files == 1 ? "" : "s", first->value("route", "")));
  }
  Table table{{{"storage", kLeft},
               {"from", kLeft},
               {"block"},
               {"batch"},
               {"depth"},
               {"threads"},
               {"GB/s"},
               {"blocks/s"},
               {"p50"},
               {"p99"},
               {"max"},
               {"cpu/GB"},
               {"check", kLeft}}};
  for (const json& row : rows) {
    const uint64_t wrong = row.at("wrong_blocks");
    const std::string check = row.at("checked_blocks") == 0 ? terminal.dim("off")
                              : wrong == 0                  ? terminal.green("ok")
                                           : terminal.red(fmt::format("{} blocks wrong", wrong));
    table.add({row.at("storage"), row.at("from"), format_size(row.at("size")), row.at("batch").dump(),
               row.at("depth").dump(), row.at("threads").dump(),
               fmt::format("{:.2f}", row.at("bytes_per_s").get<double>() / 1e9),
               format_count(static_cast<uint64_t>(row.at("blocks_per_s").get<double>())),
               format_duration(row.at("p50_s")), format_duration(row.at("p99_s")),
               format_duration(row.at("max_s")), format_duration(row.at("cpu_s_per_gb")), check});
  }
  return text + table.render(terminal);
}

}  // namespace

void run_storage_bench(const StorageOptions& options, const std::vector<StorageRow>& rows,
                       const CommonOptions& common) {
  ProgressBar bar(common.errors, "bench");
  json results = json::array();
  for (size_t index = 0; index < rows.size(); ++index) {
    const Row& row = rows[index].row;
    bar.update(static_cast<double>(index) / static_cast<double>(rows.size()),
               fmt::format("{} {} {} x {}", rows[index].place, row.from,
                           format_size(static_cast<double>(row.size)), row.batch));
    StorageRun run(options, rows[index]);
    run.prepare();
    json figures = run.measure();
    figures["wrong_blocks"] = run.count_wrong();
    figures["checked_blocks"] = run.checked_blocks();
    results.push_back(std::move(figures));
  }
  bar.clear();
  if (common.json) {
    print_json({{"options", options}, {"rows", results}}, JsonLayout::kIndented);
  } else {
    fmt::print("{}", render(options, results, common.output));
  }
  for (const json& row : results) {
    if (row.at("wrong_blocks") != 0) throw Failure{"blocks hold wrong bytes"};
  }
}

}  // namespace tool::bench

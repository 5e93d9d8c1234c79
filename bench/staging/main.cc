// towline_bench_staging: what moving between a peer's memory and a file in one transfer costs over its two
// steps. The legs alone (peer to our memory, our memory to the file) and the whole take turns within every
// round; the ratio is to the slower leg.
#include <fmt/format.h>
#include <unistd.h>
#include <towline/storage.hpp>
#include <towline/towline.hpp>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "support/process.h"
#include "support/quiet.h"
#include "support/statistics.h"
#include "support/table.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int rounds = 7;
  std::uint64_t mebibytes = 256;
  std::uint64_t block_kibibytes = 64;
  std::string folder = ".";
  std::string backends = "tcp,shm";
  std::string config;
  double quiet_s = 0;
  std::string json_file;
};

[[noreturn]] void bad(const std::string& what) { throw std::runtime_error(what); }

double seconds_of(const towline::Transfer& transfer) {
  const auto start = Clock::now();
  towline::Status status = transfer.post();
  if (status == towline::Status::kInProgress) status = transfer.wait(std::chrono::seconds{60});
  if (status != towline::Status::kOk)
    bad(fmt::format("a transfer ended with {}", towline::status_text(status)));
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The owner of the memory: passive.
int run_target() {
  Channel parent(0, 1);
  const Json wanted = parent.receive();
  const towline::Agent agent("owner",
                             {.listen = "127.0.0.1:0", .backends = wanted["backend"].get<std::string>()});
  const towline::Memory memory(wanted["bytes"].get<std::uint64_t>());
  std::memset(memory.data(), 0x5a, memory.size());
  const towline::Region region = agent.register_memory(towline::dram(memory));
  parent.send({{"address", agent.address()}, {"memory", reinterpret_cast<std::uint64_t>(memory.data())}});
  try {
    (void)parent.receive();
  } catch (const std::exception&) {
  }
  return 0;
}

struct Cell {
  std::string name;
  std::vector<double> far, near, whole, ratio;  // bytes a second; the ratio within a round
};

class Bench {
 public:
  Bench(const Options& options, const std::string& backend)
      : bytes_(options.mebibytes << 20),
        block_(options.block_kibibytes << 10),
        target_({std::filesystem::read_symlink("/proc/self/exe").string(), "target"}),
        agent_("stager", {.listen = "none", .backends = backend + ",posix", .config = options.config}),
        memory_(bytes_),
        region_(agent_.register_memory(towline::dram(memory_))) {
    std::memset(memory_.data(), 0xa5, bytes_);
    const Json there = target_.ask({{"backend", backend}, {"bytes", bytes_}});
    peer_ = agent_.connect(there["address"].get<std::string>());
    theirs_ = peer_->block_list(towline::blocks_of(
        reinterpret_cast<const void*>(there["memory"].get<std::uint64_t>()), bytes_, block_));
    ours_ = agent_.block_list(towline::blocks_of(memory_.data(), bytes_, block_));
  }

  void run(Cell& cell, const std::string& path, bool direct, towline::Op op, const Options& options) {
    const towline::Region file = towline::register_storage(
        agent_, "file:" + path,
        {.access = towline::Access::kAll, .create = true, .direct = direct, .bytes = bytes_});
    const towline::BlockList stored =
        agent_.block_list(towline::storage_blocks(file, 0, block_).repeat(bytes_ / block_, block_));
    const bool read = op == towline::Op::read;
    const towline::Op towards_file = read ? towline::Op::write : towline::Op::read;
    const towline::Transfer far = agent_.transfer(op, *ours_, *theirs_);
    const towline::Transfer near = agent_.transfer(towards_file, *ours_, stored);
    const towline::Transfer whole = agent_.transfer(op, stored, *theirs_);
    (void)seconds_of(agent_.transfer(towline::Op::write, *ours_, stored));  // the file is there, and cached
    (void)seconds_of(whole);
    for (int round = 0; round < options.rounds; ++round) {
      if (options.quiet_s > 0) wait_until_quiet(options.quiet_s);
      double seconds[3];
      for (int turn = 0; turn < 3; ++turn) {
        const int which = (turn + round) % 3;
        seconds[which] = seconds_of(which == 0 ? far : which == 1 ? near : whole);
      }
      const auto bytes = static_cast<double>(bytes_);
      cell.far.push_back(bytes / seconds[0]);
      cell.near.push_back(bytes / seconds[1]);
      cell.whole.push_back(bytes / seconds[2]);
      cell.ratio.push_back(std::max(seconds[0], seconds[1]) / seconds[2]);
    }
  }

 private:
  const std::uint64_t bytes_;
  const std::uint64_t block_;
  ChildProcess target_;
  towline::Agent agent_;
  towline::Memory memory_;
  towline::Region region_;
  std::optional<towline::Peer> peer_;
  std::optional<towline::BlockList> theirs_;
  std::optional<towline::BlockList> ours_;
};

std::string text_of(const std::vector<double>& samples, double scale, const char* format) {
  const Spread spread = spread_of(samples);
  return fmt::format(fmt::runtime(format), spread.median * scale, spread.min * scale, spread.max * scale);
}

int compare(const Options& options) {
  const std::string path = options.folder + "/towline-bench-staging." + std::to_string(getpid());
  std::vector<Cell> cells;
  for (const std::string& backend : CLI::detail::split(options.backends, ',')) {
    Bench bench(options, backend);
    for (const bool direct : {false, true}) {
      for (const towline::Op op : {towline::Op::read, towline::Op::write}) {
        const bool read = op == towline::Op::read;
        Cell cell{fmt::format("{} {} {} file", backend, read ? "to" : "from", direct ? "direct" : "cached"),
                  {},
                  {},
                  {},
                  {}};
        try {
          bench.run(cell, path, direct, op, options);
          cells.push_back(std::move(cell));
        } catch (const std::exception& error) {
          fmt::print(stderr, "{}: {}\n", cell.name, error.what());
        }
        std::filesystem::remove(path);
      }
    }
  }
  Rows rows = {
      {"peer's memory", "peer's leg GB/s", "file's leg GB/s", "whole GB/s", "whole over the slower leg"}};
  Json all = Json::array();
  for (const Cell& cell : cells) {
    rows.push_back({cell.name, text_of(cell.far, 1e-9, "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(cell.near, 1e-9, "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(cell.whole, 1e-9, "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(cell.ratio, 1, "{:.2f} [{:.2f} {:.2f}]")});
    all.push_back({{"cell", cell.name},
                   {"far", cell.far},
                   {"near", cell.near},
                   {"whole", cell.whole},
                   {"ratio", cell.ratio}});
  }
  fmt::print("{}", render(rows));
  if (!options.json_file.empty()) std::ofstream(options.json_file) << all.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  bench::Options options;
  CLI::App app{"What moving between a peer's memory and a file in one transfer costs over its two steps"};
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--mib", options.mebibytes, "of one transfer")->capture_default_str();
  app.add_option("--block-kib", options.block_kibibytes)->capture_default_str();
  app.add_option("--folder", options.folder, "where the file lies")->capture_default_str();
  app.add_option("--backends", options.backends, "towards the peer")->capture_default_str();
  app.add_option("--config", options.config, "TOML for the agent that stages");
  app.add_option("--quiet-s", options.quiet_s, "wait so long at most for an idle machine before each round");
  app.add_option("--json", options.json_file);
  auto* target = app.add_subcommand("target", "the other process; started by the program itself")->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    return target->parsed() ? bench::run_target() : bench::compare(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "towline_bench_staging: {}\n", error.what());
    return 2;
  }
}

// towline_bench_staging: what moving between a peer's memory and a file in one transfer costs over its two
// steps. The legs alone (peer to our memory, our memory to the file), both at once and the whole take turns
// within every round; the ratio is to the slower leg.
//
// Both processes share the machine, and a leg alone may keep all its processors busy, or all that its memory
// carries. Two agents with memory of their own therefore run both legs at once, neither waiting for the other:
// the last ratio is to that figure. The whole can be quicker: its second step finds
// bytes in the caches that the first has just put there.
#include <fmt/format.h>
#include <unistd.h>
#include <towline/storage.hpp>
#include <towline/towline.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "support/idle_machine.h"
#include "support/process.h"
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
  std::string paths = "tcp,mapped,process_vm";
  std::string config;
  double quiet_s = 0;
  std::string json_file;
};

[[noreturn]] void bad(const std::string& what) { throw std::runtime_error(what); }

struct Took {
  double seconds = 0;
  double processor_seconds = 0;  // of both processes
};

double clock_seconds(clockid_t clock) {
  timespec now = {};
  return clock_gettime(clock, &now) == 0
             ? static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec)
             : 0;
}

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
  const auto bytes = wanted["bytes"].get<std::uint64_t>();
  const bool shared = wanted["shared"].get<bool>();
  std::optional<towline::Memory> mappable;
  if (shared) mappable.emplace(bytes);
  const Memory pages = shared ? Memory() : Memory::anonymous(bytes);
  void* const memory = shared ? mappable->data() : pages.data();
  std::memset(memory, 0x5a, bytes);
  const towline::Region region = agent.register_memory(
      shared ? towline::dram(*mappable) : towline::dram(memory, bytes), {.access = towline::Access::kAll});
  parent.send({{"address", agent.address()},
               {"memory", reinterpret_cast<std::uint64_t>(memory)},
               {"process", static_cast<std::int64_t>(getpid())}});
  try {
    (void)parent.receive();
  } catch (const std::exception&) {
  }
  return 0;
}

struct Cell {
  std::string name;
  // Bytes a second; nanoseconds of processors for each byte; ratios within a round.
  std::vector<double> far, near, both, whole, ratio, ratio_of_both, far_ns, near_ns, whole_ns;
};

// An agent on our side, with memory that both legs may use.
struct Stager {
  // A name of its own: an agent that connects under another's takes its place.
  Stager(const std::string& name, const Options& options, const std::string& backend, std::uint64_t bytes)
      : agent(name, {.listen = "none", .backends = backend + ",posix", .config = options.config}),
        memory(bytes),
        region(agent.register_memory(towline::dram(memory), {.access = towline::Access::kAll})) {
    std::memset(memory.data(), 0xa5, bytes);
  }

  void connect(const Json& target, std::uint64_t block) {
    const std::uint64_t bytes = memory.size();
    peer = agent.connect(target["address"].get<std::string>());
    theirs = peer->block_list(towline::blocks_of(
        reinterpret_cast<const void*>(target["memory"].get<std::uint64_t>()), bytes, block));
    ours = agent.block_list(towline::blocks_of(memory.data(), bytes, block));
  }

  towline::Agent agent;
  towline::Memory memory;
  towline::Region region;
  std::optional<towline::Peer> peer;
  std::optional<towline::BlockList> theirs;
  std::optional<towline::BlockList> ours;
};

class Bench {
 public:
  Bench(const Options& options, const std::string& path)
      : bytes_(options.mebibytes << 20),
        block_(options.block_kibibytes << 10),
        target_({std::filesystem::read_symlink("/proc/self/exe").string(), "target"}),
        stager_("stager", options, backend_of(path), bytes_),
        other_("beside", options, backend_of(path), bytes_) {
    const Json there =
        target_.ask({{"backend", backend_of(path)}, {"bytes", bytes_}, {"shared", path == "mapped"}});
    if (clock_getcpuclockid(static_cast<pid_t>(there["process"].get<std::int64_t>()), &target_clock_) != 0)
      bad("the other process's clock can't be read");
    stager_.connect(there, block_);
    other_.connect(there, block_);
  }

  void run(Cell& cell, const std::string& path, bool direct, bool read, const Options& options) {
    towline::Agent& agent = stager_.agent;
    const towline::Region file = agent.register_storage(
        "file:" + path, {.access = towline::Access::kAll, .create = true, .direct = direct, .bytes = bytes_});
    const towline::BlockList stored =
        agent.block_list(file.blocks(0, block_).repeat(bytes_ / block_, block_));
    const auto move = [read](const towline::Agent& by, const towline::BlockList& from,
                             const towline::BlockList& to) {
      return read ? by.transfer(from, to) : by.transfer(to, from);
    };
    const towline::Transfer far = move(agent, *stager_.theirs, *stager_.ours);
    const towline::Transfer near = move(agent, *stager_.ours, stored);
    const towline::Transfer beside = move(other_.agent, *other_.theirs, *other_.ours);
    const towline::Transfer whole = move(agent, *stager_.theirs, stored);
    (void)seconds_of(agent.transfer(*stager_.ours, stored));  // it is there, and cached
    (void)seconds_of(whole);
    for (int round = 0; round < options.rounds; ++round) {
      if (options.quiet_s > 0) wait_until_quiet(options.quiet_s);
      Took took[4];
      for (int turn = 0; turn < 4; ++turn) {
        const int which = (turn + round) % 4;
        took[which] = which == 3 ? measure([&] { both_at_once(near, beside); }) : measure([&] {
          (void)seconds_of(which == 0 ? far : which == 1 ? near : whole);
        });
      }
      const auto bytes = static_cast<double>(bytes_);
      const double slower = std::max(took[0].seconds, took[1].seconds);
      cell.far.push_back(bytes / took[0].seconds);
      cell.near.push_back(bytes / took[1].seconds);
      cell.whole.push_back(bytes / took[2].seconds);
      cell.both.push_back(bytes / took[3].seconds);
      cell.far_ns.push_back(1e9 * took[0].processor_seconds / bytes);
      cell.near_ns.push_back(1e9 * took[1].processor_seconds / bytes);
      cell.whole_ns.push_back(1e9 * took[2].processor_seconds / bytes);
      cell.ratio.push_back(slower / took[2].seconds);
      cell.ratio_of_both.push_back(took[3].seconds / took[2].seconds);
    }
  }

 private:
  static std::string backend_of(const std::string& path) { return path == "tcp" ? "tcp" : "shm"; }
  static void both_at_once(const towline::Transfer& near, const towline::Transfer& beside) {
    std::exception_ptr failure;
    std::thread other([&] {
      try {
        (void)seconds_of(beside);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    try {
      (void)seconds_of(near);
    } catch (...) {
      other.join();
      throw;
    }
    other.join();
    if (failure) std::rethrow_exception(failure);
  }

  // The agent's thread and the file's may still finish their work, which would count for the next contender.
  template <class Work>
  [[nodiscard]] Took measure(Work&& work) const {
    const double before = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) + clock_seconds(target_clock_);
    const auto start = Clock::now();
    work();
    Took took;
    took.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    took.processor_seconds = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) + clock_seconds(target_clock_) - before;
    return took;
  }

  const std::uint64_t bytes_;
  const std::uint64_t block_;
  ChildProcess target_;
  clockid_t target_clock_ = 0;
  Stager stager_;
  Stager other_;
};

std::string text_of(const std::vector<double>& samples, double scale, const char* format) {
  const Spread spread = spread_of(samples);
  return fmt::format(fmt::runtime(format), spread.median * scale, spread.min * scale, spread.max * scale);
}

int compare(const Options& options) {
  const std::string path = options.folder + "/towline-bench-staging." + std::to_string(getpid());
  std::vector<Cell> cells;
  for (const std::string& way : CLI::detail::split(options.paths, ',')) {
    Bench bench(options, way);
    for (const bool direct : {false, true}) {
      for (const bool read : {true, false}) {
        Cell cell;
        cell.name = fmt::format("{} {} {} file", way, read ? "to" : "from", direct ? "direct" : "cached");
        try {
          bench.run(cell, path, direct, read, options);
          cells.push_back(std::move(cell));
        } catch (const std::exception& error) {
          fmt::print(stderr, "{}: {}\n", cell.name, error.what());
        }
        std::filesystem::remove(path);
      }
    }
  }
  Rows rows = {{"peer's memory", "peer's leg GB/s", "file's leg GB/s", "both at once GB/s", "whole GB/s",
                "over the slower leg", "over both at once", "processors ns/B: peer's, file's, whole"}};
  Json all = Json::array();
  for (const Cell& cell : cells) {
    rows.push_back({cell.name, text_of(cell.far, 1e-9, "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(cell.near, 1e-9, "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(cell.both, 1e-9, "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(cell.whole, 1e-9, "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(cell.ratio, 1, "{:.2f} [{:.2f} {:.2f}]"),
                    text_of(cell.ratio_of_both, 1, "{:.2f} [{:.2f} {:.2f}]"),
                    fmt::format("{:.3f} {:.3f} {:.3f}", spread_of(cell.far_ns).median,
                                spread_of(cell.near_ns).median, spread_of(cell.whole_ns).median)});
    all.push_back({{"cell", cell.name},
                   {"far", cell.far},
                   {"near", cell.near},
                   {"both", cell.both},
                   {"whole", cell.whole},
                   {"ratio", cell.ratio},
                   {"ratio_of_both", cell.ratio_of_both},
                   {"far_ns", cell.far_ns},
                   {"near_ns", cell.near_ns},
                   {"whole_ns", cell.whole_ns}});
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
  app.add_option("--paths", options.paths, "towards the peer: tcp, mapped, process_vm")
      ->capture_default_str();
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

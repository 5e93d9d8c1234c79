// towline_bench_overhead: what Towline costs beside moving bytes: making transfers, posting small ones,
// memory a block, creating agents, idling, knowing many peers. Each row names its goal; NIXL's figure stands
// beside it where it has one.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <towline/towline.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "allocations.h"
#include "support/process.h"
#include "support/statistics.h"
#include "support/table.h"

namespace bench {
namespace {

constexpr std::size_t kBlock = 4096;
constexpr std::size_t kBlocksInSpan = 131072;
constexpr std::size_t kSpan = kBlock * kBlocksInSpan;
constexpr std::size_t kPicked = 100'000;

struct Row {
  std::string what;
  Spread value;
  std::string unit;
  double goal;         // at most; 0: none, for information
  std::string nixl{};  // key of NIXL's figure
};

struct Options {
  int rounds = 9;
  std::size_t peers = 10'000;
  std::string nixl_python;
  std::string nixl_script = BENCH_NIXL_SCRIPT;
  std::string json_file;
};

int run_target() {
  Channel initiator(STDIN_FILENO, STDOUT_FILENO);
  towline::Agent agent("overhead-target", {.listen = "127.0.0.1:0"});
  towline::Memory memory(kSpan);
  const auto region = agent.register_memory(towline::dram(memory), {.access = towline::Access::kAll});
  initiator.send({{"agent", agent.address()}, {"address", reinterpret_cast<std::uint64_t>(memory.data())}});
  try {
    initiator.receive();
  } catch (const std::exception&) {
  }
  return 0;
}

// `work` repeated `times`; nanoseconds each, one sample a round.
template <class Work>
Spread time_ns(int rounds, std::uint64_t times, Work work) {
  std::vector<double> samples;
  for (int round = 0; round < rounds; ++round) {
    const double start = now_s();
    for (std::uint64_t i = 0; i < times; ++i) work();
    samples.push_back((now_s() - start) * 1e9 / static_cast<double>(times));
  }
  return spread_of(samples);
}

Spread scaled(Spread spread, double factor) {
  return {spread.median * factor, spread.min * factor, spread.max * factor};
}

template <class Index>
std::vector<Index> shuffled(std::uint64_t seed) {
  std::vector<Index> all(kBlocksInSpan);
  std::iota(all.begin(), all.end(), Index{0});
  std::shuffle(all.begin(), all.end(), std::mt19937_64(seed));
  all.resize(kPicked);
  return all;
}

// An agent connected to the target process, and lists over both memories.
class Pair {
 public:
  explicit Pair(ChildProcess& target)
      : hello_(target.channel().receive()),
        agent("overhead", {.progress = towline::Progress::kCaller, .listen = "127.0.0.1:0"}),
        memory(kSpan),
        region(agent.register_memory(towline::dram(memory), {.access = towline::Access::kAll})),
        peer(agent.connect(hello_.at("agent"))),
        here(agent.block_list(towline::Blocks::at(memory.data(), kBlock).repeat(kBlocksInSpan, kBlock))),
        there(peer.block_list(towline::Blocks::at(hello_.at("address").get<std::uint64_t>(), kBlock)
                                  .repeat(kBlocksInSpan, kBlock))) {}

  towline::Transfer write_of(std::uint64_t bytes) const {
    const auto from = agent.block_list(towline::Blocks::at(memory.data(), bytes));
    const auto to = peer.block_list(towline::Blocks::at(hello_.at("address").get<std::uint64_t>(), bytes));
    return agent.transfer(from, to);
  }

 private:
  Json hello_;

 public:
  towline::Agent agent;
  towline::Memory memory;
  towline::Region region;
  towline::Peer peer;
  towline::BlockList here;
  towline::BlockList there;
};

void finish(const towline::Transfer& transfer) {
  towline::Status status = transfer.post();
  while (status == towline::Status::kInProgress) status = transfer.poll();
  if (status != towline::Status::kOk) throw std::runtime_error(std::string(towline::status_text(status)));
}

template <class Index>
Row making_irregular(const Pair& pair, const Options& options, const std::string& name) {
  const auto mine = shuffled<Index>(1);
  const auto theirs = shuffled<Index>(2);
  const Spread all = time_ns(options.rounds, 1, [&] {
    const auto transfer = pair.agent.transfer(pair.here[mine], pair.there[theirs]);
  });
  return {name, scaled(all, 1.0 / kPicked), "ns a block", 10, "make_ns_per_block"};
}

Spread making_regular(const Pair& pair, const Options& options) {
  constexpr std::size_t kAtOnce = 100;  // freed off the clock
  const towline::Range range{.start = 0, .step = 1, .count = kPicked};
  std::vector<double> samples;
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<towline::Transfer> made;
    made.reserve(kAtOnce);
    const double start = now_s();
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      made.push_back(pair.agent.transfer(pair.here[range], pair.there[range]));
    }
    samples.push_back((now_s() - start) * 1e9 / kAtOnce);
  }
  return spread_of(samples);
}

void making_rows(const Pair& pair, const Options& options, std::vector<Row>& rows) {
  rows.push_back(
      making_irregular<std::uint32_t>(pair, options, "make and free a transfer, 100,000 picks of 4 bytes"));
  rows.push_back(making_irregular<std::uint64_t>(pair, options, "the same, picks of 8 bytes"));
  rows.push_back(
      {"make a transfer, 100,000 regular picks", making_regular(pair, options), "ns in all", 1000});
  const auto mine = shuffled<std::uint32_t>(1);
  const auto theirs = shuffled<std::uint32_t>(2);
  const Allocations before = allocations();
  const auto transfer = pair.agent.transfer(pair.here[mine], pair.there[theirs]);
  const auto held = static_cast<double>(allocations().bytes_in_use - before.bytes_in_use) / kPicked;
  rows.push_back({"memory of an irregular transfer", {held, held, held}, "bytes a block", 16});
}

Spread post_ns(const Pair& pair, const Options& options) {
  const auto transfer = pair.write_of(64);
  finish(transfer);
  return time_ns(options.rounds, 20'000, [&] { finish(transfer); });
}

void posting_rows(const Pair& pair, const Options& options, std::vector<Row>& rows) {
  rows.push_back({"post 64 B into mapped memory, until done", post_ns(pair, options), "ns", 300, "post_ns"});
  const auto page = pair.write_of(kBlock);
  finish(page);
  rows.push_back(
      {"the same, 4 KiB", time_ns(options.rounds, 20'000, [&] { finish(page); }), "ns", 0, "post_page_ns"});
  const Allocations before = allocations();
  for (int i = 0; i < 10'000; ++i) finish(page);
  const auto calls = static_cast<double>(allocations().calls - before.calls);
  rows.push_back({"allocations in 10,000 posts", {calls, calls, calls}, "", 0});
}

void agent_rows(const Options& options, std::vector<Row>& rows) {
  rows.push_back({"create and end an agent",
                  scaled(time_ns(options.rounds, 1, [] { towline::Agent agent("short"); }), 1e-6), "ms", 5,
                  "agent_ms"});
}

double cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

// A hosted agent that has just worked and has a peer: what it burns while nobody asks anything of it.
void idle_row(const std::string& target_agent, std::vector<Row>& rows) {
  towline::Agent agent("idle", {.listen = "127.0.0.1:0"});
  const auto peer = agent.connect(target_agent);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::vector<double> shares;
  for (int i = 0; i < 3; ++i) {
    const double cpu = cpu_s();
    const double start = now_s();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    shares.push_back((cpu_s() - cpu) / (now_s() - start) * 100);
  }
  rows.push_back({"idle hosted agent with a peer", spread_of(shares), "% of a core", 1, "idle_percent"});
}

void many_peers_rows(const Pair& pair, const Options& options, std::vector<Row>& rows) {
  const Spread before = post_ns(pair, options);
  std::vector<towline::Peer> known;
  double adding_s = 0;
  for (std::size_t i = 0; i < options.peers; ++i) {
    const towline::Agent other("peer-" + std::to_string(i),
                               {.progress = towline::Progress::kCaller, .listen = "none"});
    const auto blob = other.metadata();
    const double start = now_s();
    known.push_back(pair.agent.add_peer(blob));
    adding_s += now_s() - start;
  }
  const double each_us = adding_s * 1e6 / static_cast<double>(options.peers);
  rows.push_back({fmt::format("learn a peer, of {}", options.peers), {each_us, each_us, each_us}, "us", 0});
  const Spread after = post_ns(pair, options);
  rows.push_back({fmt::format("post 64 B, {} peers known, over 1 peer", options.peers),
                  {after.median / before.median, after.min / before.median, after.max / before.median},
                  "ratio",
                  1.1});
}

Json nixl_costs(const Options& options) {
  if (options.nixl_python.empty()) return Json::object();
  const std::map<std::string, std::string> environment = {
      {"NIXL_LOG_LEVEL", "WARN"}, {"UCX_MODULES", "^ib,cuda"}, {"UCX_TLS", "shm,self"}};
  ChildProcess target({options.nixl_python, options.nixl_script, "target"}, environment);
  ChildProcess initiator({options.nixl_python, options.nixl_script, "initiator"}, environment);
  const Json theirs = target.ask({{"do", "setup"}, {"span", kSpan}});
  const Json ours = initiator.ask({{"do", "setup"}, {"span", kSpan}});
  target.ask({{"do", "connect"}, {"metadata", ours.at("metadata")}, {"address", ours.at("address")}});
  initiator.ask({{"do", "connect"}, {"metadata", theirs.at("metadata")}, {"address", theirs.at("address")}});
  target.ask({{"do", "serve"}});
  Json costs = initiator.ask({{"do", "costs"},
                              {"block", kBlock},
                              {"local", shuffled<std::uint64_t>(1)},
                              {"remote", shuffled<std::uint64_t>(2)}});
  target.ask({{"do", "rest"}});
  costs["agent_ms"] = ours.at("agent_ms");
  return costs;
}

std::string number(double value) { return fmt::format("{:.3g}", value); }

void report(const std::vector<Row>& rows, const Json& nixl, const Options& options) {
  Rows table = {{"cost", "median", "[min max]", "unit", "goal", "NIXL"}};
  Json document;
  for (const Row& row : rows) {
    const bool known = nixl.contains(row.nixl);
    table.push_back({row.what, number(row.value.median),
                     fmt::format("[{} {}]", number(row.value.min), number(row.value.max)), row.unit,
                     row.goal > 0 ? "<= " + number(row.goal) : "-",
                     known ? number(nixl.at(row.nixl).get<double>()) : "-"});
    document[row.what] = {{"median", row.value.median},
                          {"min", row.value.min},
                          {"max", row.value.max},
                          {"unit", row.unit},
                          {"goal", row.goal}};
    if (known) document[row.what]["nixl"] = nixl.at(row.nixl);
  }
  fmt::print("{}", render(table));
  if (!options.json_file.empty()) std::ofstream(options.json_file) << document.dump(1) << '\n';
}

int compare(const Options& options) {
  const Json nixl = nixl_costs(options);
  ChildProcess target({std::filesystem::read_symlink("/proc/self/exe"), "target"});
  std::vector<Row> rows;
  {
    const Pair pair(target);
    making_rows(pair, options, rows);
    posting_rows(pair, options, rows);
    agent_rows(options, rows);
    many_peers_rows(pair, options, rows);
  }
  ChildProcess second({std::filesystem::read_symlink("/proc/self/exe"), "target"});
  idle_row(second.channel().receive().at("agent"), rows);
  report(rows, nixl, options);
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  bench::Options options;
  CLI::App app{"What Towline costs beside moving bytes"};
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--peers", options.peers, "known peers in the last rows")->capture_default_str();
  app.add_option("--nixl-python", options.nixl_python,
                 "interpreter that peers/nixl/setup printed; without it no peer");
  app.add_option("--nixl-script", options.nixl_script)->capture_default_str();
  app.add_option("--json", options.json_file);
  auto* target = app.add_subcommand("target", "the other process; started by the program itself")->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    return target->parsed() ? bench::run_target() : bench::compare(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "towline_bench_overhead: {}\n", error.what());
    return 2;
  }
}

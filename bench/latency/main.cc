// towline_bench_latency: one-way time of a 64-byte write with its notice between two processes of one host,
// next to what a bare flag and a bare futex take. Spinning links are timed there and back, halved; sleeping
// ones by the clock that both processes share, after the receiver has had time to fall asleep. Kinds take
// turns, round after round.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "link.h"
#include "support/idle_machine.h"
#include "support/statistics.h"
#include "support/table.h"

namespace bench {
namespace {

constexpr std::uint64_t kWarmUps = 1000;
constexpr std::uint64_t kTripsPerSample = 100;  // the clock's own cost divided by so many

std::vector<LinkKind> kinds() {
  std::vector<LinkKind> all = {kFlagLink, kFutexLink, kPacketLink};
#ifdef BENCH_HAS_TOWLINE
  all.push_back(kTowlineSpinLink);
  all.push_back(kTowlineSleepLink);
  all.push_back(kTowlineHostedLink);
#endif
  return all;
}

class Target {
 public:
  Json handle(const Json& request) {
    const std::string& verb = request.at("do").get_ref<const std::string&>();
    const std::string& name = request.at("kind").get_ref<const std::string&>();
    if (verb == "make") {
      for (const LinkKind& kind : kinds())
        if (kind.name == name) links_[name] = kind.make(false);
      return links_.at(name)->describe();
    }
    Link& link = *links_.at(name);
    if (verb == "connect") {
      link.connect(request.at("other"));
    } else if (verb == "connected") {
      link.connected();
    } else if (verb == "echo") {
      for (std::uint64_t i = request.at("count"); i > 0; --i) link.send(link.receive());
    } else if (verb == "receive") {
      Json delays = Json::array();
      for (std::uint64_t i = request.at("count"); i > 0; --i) {
        const Message message = link.receive();
        delays.push_back(now_s() - message.sent_s);
      }
      return {{"delays", delays}};
    }
    return {{"done", true}};
  }

 private:
  std::map<std::string, std::unique_ptr<Link>> links_;
};

int run_target() {
  Channel initiator(STDIN_FILENO, STDOUT_FILENO);
  Target target;
  for (;;) {
    Json request;
    try {
      request = initiator.receive();
    } catch (const std::exception&) {
      return 0;
    }
    try {
      initiator.send(target.handle(request));
    } catch (const std::exception& error) {
      initiator.send({{"error", error.what()}});
    }
  }
}

struct Runner {
  LinkKind kind;
  std::unique_ptr<Link> link;
  std::vector<double> samples_s;        // one way
  std::vector<double> round_medians_s;  // for the spread between rounds
};

void connect(Runner& runner, ChildProcess& target) {
  const Json theirs = target.ask({{"do", "make"}, {"kind", runner.kind.name}});
  runner.link = runner.kind.make(true);
  target.channel().send({{"do", "connect"}, {"kind", runner.kind.name}, {"other", runner.link->describe()}});
  runner.link->connect(theirs);
  const Json answer = target.channel().receive();
  if (answer.contains("error")) throw std::runtime_error(answer["error"].get<std::string>());
  target.ask({{"do", "connected"}, {"kind", runner.kind.name}});
  runner.link->connected();
}

std::vector<double> there_and_back(Runner& runner, ChildProcess& target, std::uint64_t samples) {
  const std::uint64_t trips = kWarmUps + samples * kTripsPerSample;
  target.channel().send({{"do", "echo"}, {"kind", runner.kind.name}, {"count", trips}});
  Message message;
  const auto trip = [&] {
    ++message.number;
    runner.link->send(message);
    if (runner.link->receive().number != message.number) throw std::runtime_error("an old message came back");
  };
  for (std::uint64_t i = 0; i < kWarmUps; ++i) trip();
  std::vector<double> one_way;
  for (std::uint64_t i = 0; i < samples; ++i) {
    const double start = now_s();
    for (std::uint64_t k = 0; k < kTripsPerSample; ++k) trip();
    one_way.push_back((now_s() - start) / (2 * kTripsPerSample));
  }
  target.channel().receive();
  return one_way;
}

std::vector<double> after_sleep(Runner& runner, ChildProcess& target, std::uint64_t samples) {
  target.channel().send({{"do", "receive"}, {"kind", runner.kind.name}, {"count", samples}});
  Message message;
  for (std::uint64_t i = 0; i < samples; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than anybody spins
    message.sent_s = now_s();
    runner.link->send(message);
  }
  return target.channel().receive().at("delays").get<std::vector<double>>();
}

struct Options {
  int rounds = 5;
  std::uint64_t samples = 1000;
  double quiet_s = 0;
  std::string only;
  std::string json_file;
};

Json report(const std::vector<Runner>& runners) {
  Rows rows = {
      {"64 B write and notice, one way", "p50 us", "[rounds]", "p99 us", "max us", "over its limit, us"}};
  Json results;
  for (const Runner& runner : runners) {
    const double median = percentile(runner.samples_s, 0.5) * 1e6;
    const Spread rounds = spread_of(runner.round_medians_s);
    std::string over = "-";
    for (const Runner& limit : runners)
      if (limit.kind.name == runner.kind.limit)
        over = fmt::format("{:.2f}", median - percentile(limit.samples_s, 0.5) * 1e6);
    const double p99 = percentile(runner.samples_s, 0.99) * 1e6;
    const double worst = percentile(runner.samples_s, 1) * 1e6;
    rows.push_back({runner.kind.name, fmt::format("{:.2f}", median),
                    fmt::format("[{:.2f} {:.2f}]", rounds.min * 1e6, rounds.max * 1e6),
                    fmt::format("{:.2f}", p99), fmt::format("{:.1f}", worst), over});
    results[runner.kind.name] = {{"p50_us", median}, {"p99_us", p99}, {"max_us", worst}};
  }
  fmt::print("{}", render(rows));
  return results;
}

int compare(const Options& options) {
  std::vector<Runner> runners;
  // Ends first: nobody drives its agents any more, and ours would wait for them while they deregister.
  ChildProcess target({std::filesystem::read_symlink("/proc/self/exe"), "target"});
  for (const LinkKind& kind : kinds()) {
    if (std::string_view(kind.name).find(options.only) == std::string_view::npos) continue;
    Runner runner{kind, nullptr, {}, {}};
    try {
      connect(runner, target);
      runners.push_back(std::move(runner));
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: left out: {}\n", kind.name, error.what());
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    if (options.quiet_s > 0) wait_until_quiet(options.quiet_s);
    for (std::size_t i = 0; i < runners.size(); ++i) {
      Runner& runner = runners[(i + static_cast<std::size_t>(round)) % runners.size()];
      const auto samples =
          runner.kind.sleeps ? after_sleep(runner, target, std::max<std::uint64_t>(20, options.samples / 10))
                             : there_and_back(runner, target, options.samples);
      runner.samples_s.insert(runner.samples_s.end(), samples.begin(), samples.end());
      runner.round_medians_s.push_back(spread_of(samples).median);
    }
  }
  const Json results = report(runners);
  if (!options.json_file.empty()) std::ofstream(options.json_file) << results.dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  bench::Options options;
  CLI::App app{"One-way time of a 64-byte write with its notice, between two processes"};
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--samples", options.samples, "of each kind in a round")->capture_default_str();
  app.add_option("--quiet-s", options.quiet_s, "wait up to so long before each round for an idle machine")
      ->capture_default_str();
  app.add_option("--only", options.only, "what has this in its name");
  app.add_option("--json", options.json_file);
  auto* target = app.add_subcommand("target", "the other process; started by the program itself")->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    return target->parsed() ? bench::run_target() : bench::compare(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "towline_bench_latency: {}\n", error.what());
    return 2;
  }
}

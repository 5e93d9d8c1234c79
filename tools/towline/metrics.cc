#include "metrics.h"

#include <fmt/format.h>
#include <towline/telemetry.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <towline/towline.hpp>

#include "json_output.h"
#include "signals.h"
#include "streams.h"
#include "units.h"

namespace tool {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct MetricsOptions {
  bool watch = false;
  std::string interval = "1s";
  std::string prometheus;
};

json read_metrics() {
  return json::parse(towline::detail::read_text([](char* text, size_t capacity, size_t* needed) {
    return towline_host_metrics(text, capacity, needed);
  }));
}

using Key = std::array<std::string, 5>;  // agent, pid, peer, backend, direction

uint64_t field(const json& series, const char* name) { return series.value(name, uint64_t{0}); }

std::string errors_of(const json& series) {
  std::string text;
  const json errors = series.value("errors", json::object());
  for (const auto& [status, count] : errors.items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", status, count.dump());
  }
  return text;
}

std::map<Key, json> by_key(const json& agents) {
  std::map<Key, json> series;
  for (const json& agent : agents) {
    for (const json& one : agent.value("series", json::array())) {
      series[{agent.value("agent", ""),
              std::to_string(agent.value("pid", 0)) + agent.value("incarnation", ""), one.value("peer", ""),
              one.value("backend", ""), one.value("direction", "")}] = one;
    }
  }
  return series;
}

// The total so far, or the rate per second.
std::string amount(const json& series, const json* older, const char* name, double seconds, bool is_size) {
  const uint64_t now = field(series, name);
  if (seconds == 0) return is_size ? format_size(static_cast<double>(now)) : format_count(now);
  const uint64_t then = older != nullptr ? field(*older, name) : 0;
  const double rate = now > then ? static_cast<double>(now - then) / seconds : 0;
  return is_size ? format_rate(rate) : format_count(static_cast<uint64_t>(rate));
}

std::string latency(const json& series, const char* name) {
  if (field(series, "measured") == 0) return "-";
  return format_duration(static_cast<double>(field(series, name)) * 1e-9);
}

void watch(const CommonOptions& common, milliseconds interval) {
  const Signals signals;
  json before = read_metrics();
  auto before_at = steady_clock::now();
  while (signals.wait(static_cast<int>(interval.count()))) {
    json now = read_metrics();
    const auto now_at = steady_clock::now();
    const double seconds = std::chrono::duration<double>(now_at - before_at).count();
    if (common.json) {
      print_json({{"entries", now}}, JsonLayout::kLine);
    } else {
      if (common.output.interactive()) fmt::print("\033[H\033[J");
      fmt::print("{}", render_metrics(now, &before, seconds, common.output));
    }
    finish_output(stdout);
    before = std::move(now);
    before_at = now_at;
  }
}

void serve(const std::string& address) {
  const Signals signals;
  struct Stop {
    void operator()(towline_exporter_t* exporter) const { towline_exporter_stop(exporter); }
  };
  towline_exporter_t* started = nullptr;
  towline::detail::check(towline_exporter_start(nullptr, address.c_str(), &started));
  const std::unique_ptr<towline_exporter_t, Stop> exporter(started);
  fmt::print("metrics of this host's agents at http://{}/metrics\n", towline_exporter_address(started));
  finish_output(stdout);
  (void)signals.wait(-1);
}

}  // namespace

std::string render_metrics(const json& now, const json* before, double seconds, const Terminal& terminal) {
  using enum Table::Align;
  const bool rates = before != nullptr;
  if (now.empty()) return "no agents of this user are running here\n";
  Table table{{{"agent", kLeft},
               {"pid"},
               {"peer", kLeft},
               {"backend", kLeft},
               {"", kLeft},
               {rates ? "rate" : "bytes"},
               {rates ? "served rate" : "served"},
               {rates ? "transfers/s" : "transfers"},
               {rates ? "notices/s" : "notices"},
               {"median"},
               {"99 %"},
               {"errors", kLeft}}};
  const std::map<Key, json> older = rates ? by_key(*before) : std::map<Key, json>{};
  for (const json& agent : now) {
    const std::string name = agent.value("agent", "");
    const std::string pid = std::to_string(agent.value("pid", 0));
    const json all = agent.value("series", json::array());
    if (all.empty()) table.add({name, pid, "-", "", "", "", "", "", "", "", "", ""});
    for (const json& series : all) {
      const auto known = older.find({name, pid + agent.value("incarnation", ""), series.value("peer", ""),
                                     series.value("backend", ""), series.value("direction", "")});
      const json* then = known != older.end() ? &known->second : nullptr;
      const double over = rates ? seconds : 0;
      const std::string errors = errors_of(series);
      table.add({name, pid, series.value("peer", ""), series.value("backend", ""),
                 series.value("direction", ""), amount(series, then, "bytes", over, true),
                 amount(series, then, "served_bytes", over, true),
                 amount(series, then, "transfers", over, false), amount(series, then, "notices", over, false),
                 latency(series, "latency_p50_ns"), latency(series, "latency_p99_ns"),
                 errors.empty() ? "" : terminal.red(errors)});
    }
  }
  return table.render(terminal);
}

void add_metrics_command(CLI::App& app, CommonOptions& common) {
  auto* command = app.add_subcommand("metrics", "Show the traffic of the agents of this host");
  auto options = std::make_shared<MetricsOptions>();
  auto* json_flag =
      command->add_flag("--json", common.json, "Print them as JSON, with --watch a line each time");
  auto* watch_flag = command->add_flag("--watch", options->watch, "Show what moves now, again and again");
  command->add_option("--interval", options->interval, "Time between two looks")
      ->type_name("DURATION")
      ->capture_default_str();
  command
      ->add_option(
          "--prometheus", options->prometheus,
          "Serve the metrics to Prometheus at this address, such as 127.0.0.1:9400, until interrupted")
      ->type_name("HOST:PORT")
      ->excludes(json_flag)
      ->excludes(watch_flag);
  command->footer(
      "Examples:\n  towline metrics\n  towline metrics --watch\n  towline metrics --prometheus "
      "127.0.0.1:9400");
  command->callback([&common, options] {
    if (!options->prometheus.empty()) return serve(options->prometheus);
    if (options->watch) {
      const auto interval = std::chrono::duration_cast<milliseconds>(parse_duration(options->interval));
      return watch(common, std::clamp(interval, milliseconds{10}, milliseconds{3'600'000}));
    }
    const json now = read_metrics();
    if (common.json)
      print_json({{"entries", now}}, JsonLayout::kIndented);
    else
      fmt::print("{}", render_metrics(now, nullptr, 0, common.output));
  });
}

}  // namespace tool

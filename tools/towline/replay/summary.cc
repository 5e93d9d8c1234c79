#include "replay/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "samples.h"
#include "units.h"

namespace tool::replay {
namespace {

using nlohmann::json;

double sum(const std::vector<json>& reports, const char* key) {
  double total = 0;
  for (const json& report : reports) total += report.at(key).get<double>();
  return total;
}

double most(const std::vector<json>& reports, const char* key) {
  double largest = 0;
  for (const json& report : reports) largest = std::max(largest, report.at(key).get<double>());
  return largest;
}

json latency(const std::vector<json>& reports, const char* key) {
  Samples all;
  for (const json& report : reports) all.add(Samples{report.at(key).get<std::vector<double>>()});
  return {
      {"count", all.size()}, {"p50_s", all.median()}, {"p99_s", all.quantile(0.99)}, {"max_s", all.max()}};
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Sum of each rank's own rate while it had transfers in flight.
double moving_rate(const std::vector<json>& movers) {
  double rate = 0;
  for (const json& mover : movers) rate += ratio(mover.at("moved_bytes"), mover.at("active_s"));
  return rate;
}

// Adds the bytes that went to storage and came back; nothing if no rank spilled.
void summarise_spill(const std::vector<json>& prefill, json& summary) {
  std::vector<json> spills;
  for (const json& report : prefill) {
    if (const auto spill = report.find("spill"); spill != report.end() && spill->is_object())
      spills.push_back(*spill);
  }
  if (spills.empty()) return;
  json total = {{"hit_latency", latency(spills, "latencies_s")}};
  for (const char* key : {"spilled_blocks", "spilled_bytes", "restored_blocks", "restored_bytes"})
    total[key] = static_cast<uint64_t>(sum(spills, key));
  total["spilled_bytes_per_s"] = ratio(sum(spills, "spilled_bytes"), sum(spills, "spill_s"));
  total["restored_bytes_per_s"] = ratio(sum(spills, "restored_bytes"), sum(spills, "restore_s"));
  summary["spill"] = std::move(total);
}

json parsed(const std::string& text) {
  auto value = json::parse(text, nullptr, false);
  return value.is_discarded() ? json(text) : value;
}

}  // namespace

std::string describe_route(const std::string& route) {
  const json parts = parsed(route);
  if (!parts.is_object()) return "none";
  std::string text = parts.value("backend", "?");
  const auto regions = parts.find("regions");
  if (regions == parts.end() || !regions->is_array() || regions->empty()) return text;
  const std::string how = regions->front().value("how", "");
  return how.empty() ? text : fmt::format("{} ({})", text, how);
}

std::string describe_price(const std::string& route) {
  const json parts = parsed(route);
  const auto price = parts.is_object() ? parts.find("price") : parts.end();
  if (price == parts.end() || !price->is_object()) return {};
  return fmt::format("priced {} ({})", format_duration(price->value("ns", 0.0) / 1e9),
                     price->value("from", "?"));
}

json summarise(const Setup& setup, const Reports& reports) {
  const bool reading = decode_pulls(setup);
  const auto& movers = reading ? reports.decode : reports.prefill;
  json summary{{"setup", setup}, {"by", setup.by}};
  summary["bytes_per_token"] = shape_of(setup).bytes_per_token();
  // Each request is counted once, however many ranks it went to.
  const auto& side = reports.decode.empty() ? reports.prefill : reports.decode;
  const double requests = most(side, "requests");
  const double wall_s = most(side, "wall_s");
  const double bytes =
      reports.decode.empty() ? sum(reports.prefill, "moved_bytes") : sum(reports.decode, "arrived_bytes");
  summary["requests"] = static_cast<uint64_t>(requests);
  summary["wall_s"] = wall_s;
  summary["requests_per_s"] = ratio(requests, wall_s);
  summary["bytes"] = static_cast<uint64_t>(bytes);
  summary["bytes_per_s"] = ratio(bytes, wall_s);
  if (!movers.empty()) {
    summary["moving_bytes_per_s"] = moving_rate(movers);
    summary["transfer_latency"] = latency(movers, "latencies_s");
    summary["transfers"] = static_cast<uint64_t>(sum(movers, "transfers"));
    summary["blocks"] = static_cast<uint64_t>(sum(movers, "moved_blocks"));
    summary["retries"] = static_cast<uint64_t>(sum(movers, "retries"));
    for (const json& mover : movers) {
      const std::string route = mover.at("route");
      if (route.empty()) continue;
      summary["route"] = describe_route(route);
      summary["routes"].push_back(parsed(route));
    }
  }
  if (!reports.decode.empty()) {
    summary["handover_latency"] = latency(reports.decode, "handover_latencies_s");
    summary["prefix_blocks"] = static_cast<uint64_t>(most(reports.decode, "blocks_wanted"));
    summary["prefix_blocks_reused"] = static_cast<uint64_t>(most(reports.decode, "blocks_reused"));
    summary["prefix_hit_rate"] =
        ratio(sum(reports.decode, "blocks_reused"), sum(reports.decode, "blocks_wanted"));
    summary["pages_checked"] = static_cast<uint64_t>(sum(reports.decode, "pages_checked"));
    summary["words_checked"] = static_cast<uint64_t>(sum(reports.decode, "words_checked"));
    summary["check_s"] = most(reports.decode, "check_s");
    summary["decode_evictions"] = static_cast<uint64_t>(most(reports.decode, "evictions"));
    summary["decode_pool_bytes"] = static_cast<uint64_t>(sum(reports.decode, "pool_bytes"));
    summary["decode_cpu_s"] = sum(reports.decode, "cpu_s");
    const double limit = sum(reports.decode, "copy_bytes_per_s");
    summary["copy_limit_bytes_per_s"] = limit;
    if (!movers.empty()) summary["share_of_copy_limit"] = ratio(moving_rate(movers), limit);
  }
  summarise_spill(reports.prefill, summary);
  if (!reports.prefill.empty()) {
    summary["stamped_bytes"] = static_cast<uint64_t>(sum(reports.prefill, "stamped_bytes"));
    summary["prefill_evictions"] = static_cast<uint64_t>(most(reports.prefill, "evictions"));
    summary["prefill_pool_bytes"] = static_cast<uint64_t>(sum(reports.prefill, "pool_bytes"));
    summary["prefill_cpu_s"] = sum(reports.prefill, "cpu_s");
  }
  for (const char* name : {"prefill", "decode"}) {
    for (const json& report : std::string_view{name} == "prefill" ? reports.prefill : reports.decode) {
      summary["counters"][name].push_back(parsed(report.at("counters")));
    }
  }
  return summary;
}

std::string render_summary(const json& summary, const Terminal& terminal) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<18}{}\n", name, value);
  };
  const auto number = [&](const char* key) { return summary.value(key, 0.0); };
  const auto count = [&](const char* key) { return format_count(summary.value(key, uint64_t{0})); };
  const json& setup = summary.at("setup");

  const uint32_t layers = find_model(setup.at("model").get<std::string>()).layers;
  const auto replayed = setup.at("layers").get<uint32_t>();
  text += terminal.bold(
      fmt::format("{}, {} of {} layers, {}, pages of {} tokens, prefill tp {}, decode tp {}, by {}\n",
                  setup.at("model").get<std::string>(), replayed == 0 ? layers : replayed, layers,
                  setup.at("dtype").get<std::string>(), setup.at("page_tokens").get<int>(),
                  setup.at("prefill_tp").get<int>(), setup.at("decode_tp").get<int>(),
                  setup.at("by").get<std::string>()));
  line("requests", fmt::format("{} in {}: {:.1f}/s", count("requests"), format_duration(number("wall_s")),
                               number("requests_per_s")));
  if (number("bytes") > 0) {
    const bool timed = summary.contains("moving_bytes_per_s");
    line("moved",
         fmt::format(
             "{}: {} over all{}", format_size(number("bytes")), format_rate(number("bytes_per_s")),
             timed ? fmt::format(", {} while moving", format_rate(number("moving_bytes_per_s"))) : ""));
  }
  const auto times = [&](const char* name, const char* key) {
    if (!summary.contains(key)) return;
    const json& latency = summary.at(key);
    line(name, fmt::format("p50 {}, p99 {}, max {}", format_duration(latency.at("p50_s")),
                           format_duration(latency.at("p99_s")), format_duration(latency.at("max_s"))));
  };
  times("transfer latency", "transfer_latency");
  times("ready to checked", "handover_latency");
  if (summary.contains("share_of_copy_limit")) {
    line("of memcpy's rate",
         terminal.green(fmt::format("{:.0f} %", 100 * number("share_of_copy_limit"))) +
             fmt::format(" of {}, the same pages", format_rate(number("copy_limit_bytes_per_s"))));
  }
  if (summary.contains("prefix_hit_rate")) {
    line("prefix hits", fmt::format("{:.1f} % of {} blocks were there", 100 * number("prefix_hit_rate"),
                                    count("prefix_blocks")));
    line("checked", fmt::format("{} pages, {} words ({}): {}", count("pages_checked"), count("words_checked"),
                                setup.at("verify").get<std::string>(), terminal.green("all right")));
  }
  const auto side = [&](const char* name, const char* pool, const char* evictions, const char* cpu) {
    if (!summary.contains(pool)) return;
    line(name, fmt::format("pool of {}, {} blocks recycled, {} of processor time", format_size(number(pool)),
                           count(evictions), format_duration(number(cpu))));
  };
  side("prefill", "prefill_pool_bytes", "prefill_evictions", "prefill_cpu_s");
  side("decode", "decode_pool_bytes", "decode_evictions", "decode_cpu_s");
  if (summary.contains("spill")) {
    const json& spill = summary.at("spill");
    const auto went = [&](const char* name, const char* blocks, const char* bytes, const char* rate) {
      line(name, fmt::format("{} blocks, {}: {}", format_count(spill.value(blocks, uint64_t{0})),
                             format_size(spill.value(bytes, 0.0)), format_rate(spill.value(rate, 0.0))));
    };
    went("spilled", "spilled_blocks", "spilled_bytes", "spilled_bytes_per_s");
    went("brought back", "restored_blocks", "restored_bytes", "restored_bytes_per_s");
    const json& hits = spill.at("hit_latency");
    line("spill hit latency",
         fmt::format("p50 {}, p99 {}, max {}", format_duration(hits.at("p50_s")),
                     format_duration(hits.at("p99_s")), format_duration(hits.at("max_s"))));
  }
  if (summary.contains("route")) line("route", summary.at("route").get<std::string>());
  if (number("retries") > 0)
    line("repeated", fmt::format("{} transfers that failed on the way", count("retries")));
  return text;
}

}  // namespace tool::replay

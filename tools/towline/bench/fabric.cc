#include "bench/fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <towline/fabric.hpp>

#include "bench/row.h"
#include "failure.h"
#include "json_output.h"
#include "process.h"
#include "streams.h"
#include "units.h"

namespace tool::bench {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kOpensWithin{60'000};
constexpr milliseconds kFinishesWithin{600'000};

uint64_t pattern_word(uint64_t index, uint64_t seed) noexcept {
  uint64_t word = (index + 1) * 0x9e3779b97f4a7c15ULL ^ seed * 0xbf58476d1ce4e5b9ULL;
  return word ^ word >> 29;
}

// Calls use(at, word, bytes) for each piece of a word that the range has.
template <class Use>
void each_word(uint64_t offset, std::size_t bytes, uint64_t seed, Use&& use) {
  for (std::size_t at = 0; at < bytes;) {
    const uint64_t place = offset + at;
    const auto inside = static_cast<std::size_t>(place % 8);
    const std::size_t piece = std::min<std::size_t>(8 - inside, bytes - at);
    const uint64_t word = pattern_word(place / 8, seed) >> (8 * inside);
    use(at, word, piece);
    at += piece;
  }
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::vector<uint8_t> from_hex(std::string_view text) {
  std::vector<uint8_t> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, bytes[i], 16);
    if (error != std::errc{} || end != begin + 2) throw Failure{"--connect takes what the owner has printed"};
  }
  return bytes;
}

json configuration_of(const FabricBenchOptions& options) {
  return {{"rails", options.rails},     {"span", options.span_bytes},
          {"rows", options.rows},       {"iterations", options.iterations},
          {"seconds", options.seconds}, {"warmup", options.warmup},
          {"check", options.check},     {"listen", options.listen},
          {"memory", options.memory},   {"target_memory", options.target_memory}};
}

std::string describe_rails(const json& rails) {
  std::string text;
  for (const json& rail : rails) {
    const int node = rail.at("numa_node");
    const double rate = rail.at("bandwidth_bytes_per_s");
    text += fmt::format("  {}{}{}\n", rail.at("name").get<std::string>(),
                        node < 0 ? "" : fmt::format(", NUMA node {}", node),
                        rate == 0 ? "" : fmt::format(", {:.0f} Gb/s", rate * 8e-9));
  }
  return text;
}

// The GPUs and NICs of this host, with the rails that are nearest to each GPU.
std::string describe_devices() {
  size_t needed = 0;
  if (towline_fabric_topology(nullptr, 0, &needed) < 0) return {};
  std::string told(needed, '\0');
  if (towline_fabric_topology(told.data(), told.size(), &needed) < 0) return {};
  const json topology = json::parse(told.c_str(), nullptr, false);
  std::string text;
  if (topology.is_discarded()) return text;
  for (const json& gpu : topology.value("gpus", json::array())) {
    std::string near;
    for (const json& rail : gpu.value("near", json::array()))
      near += (near.empty() ? "; nearest: " : ", ") + rail.get<std::string>();
    text += fmt::format("  GPU {}{}\n", gpu.value("address", "?"), near);
  }
  return text;
}

std::string render(const json& report, const Terminal& terminal) {
  using enum Table::Align;
  std::string text = terminal.bold("Rails\n") + describe_rails(report.at("rails"));
  if (const std::string devices = describe_devices(); !devices.empty())
    text += terminal.bold("Devices\n") + devices;
  Table table{{{"what", kLeft},
               {"from", kLeft},
               {"size"},
               {"pages"},
               {"p50"},
               {"p99"},
               {"Gb/s"},
               {"of link"},
               {"Mpps a rail"},
               {"retried"},
               {"check", kLeft}}};
  for (const json& row : report.at("rows")) {
    const bool moves = row.at("kind") != "immediate";
    const uint64_t wrong = row.at("wrong_bytes");
    const double share = row.at("link_share");
    table.add({row.at("kind"), row.at("from"), moves ? format_size(row.at("size")) : "",
               row.at("batch").dump(), format_duration(row.at("p50_s")), format_duration(row.at("p99_s")),
               moves ? fmt::format("{:.2f}", row.at("bytes_per_s").get<double>() * 8e-9) : "",
               share > 0 ? fmt::format("{:.0f} %", share * 100) : "",
               fmt::format("{:.3f}", row.at("requests_per_s_of_rail").get<double>() * 1e-6),
               row.at("retried").dump(),
               !moves || row.at("checked_bytes") == 0 ? terminal.dim("off")
               : wrong == 0                           ? terminal.green("ok")
                                                      : terminal.red(fmt::format("{} bytes wrong", wrong))});
  }
  return text + table.render(terminal);
}

}  // namespace

void fill_pattern(std::span<std::byte> memory, uint64_t offset, uint64_t seed) {
  each_word(offset, memory.size(), seed, [&](std::size_t at, uint64_t word, std::size_t bytes) {
    std::memcpy(memory.data() + at, &word, bytes);
  });
}

uint64_t wrong_bytes(std::span<const std::byte> memory, uint64_t offset, uint64_t seed) {
  uint64_t wrong = 0;
  each_word(offset, memory.size(), seed, [&](std::size_t at, uint64_t word, std::size_t bytes) {
    if (std::memcmp(memory.data() + at, &word, bytes) == 0) return;
    const auto* expected = reinterpret_cast<const std::byte*>(&word);
    for (std::size_t i = 0; i < bytes; ++i) wrong += memory[at + i] != expected[i] ? 1 : 0;
  });
  return wrong;
}

std::string FabricInvitation::text() const { return hex(address) + "." + hex(descriptor); }

FabricInvitation FabricInvitation::parse(const std::string& text) {
  const auto dot = text.find('.');
  if (dot == std::string::npos || dot % 2 != 0 || (text.size() - dot) % 2 != 1)
    throw Failure{"--connect takes what the owner has printed"};
  return {from_hex(std::string_view{text}.substr(0, dot)), from_hex(std::string_view{text}.substr(dot + 1))};
}

std::vector<FabricRow> fabric_rows(const std::string& from, const std::vector<uint64_t>& sizes,
                                   const std::vector<uint64_t>& batches, uint64_t span_bytes) {
  if (batches.size() > 1 && batches.size() != sizes.size())
    throw Failure{fmt::format("{} batches for {} sizes: give one for each, or one for all", batches.size(),
                              sizes.size())};
  std::vector<FabricRow> rows;
  for (const char* kind : {"paged", "single"}) {
    for (const std::string& side : sides_of(from, {"initiator", "target"})) {
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        FabricRow row{kind, side, sizes[i], 1};
        if (*kind == 'p')
          row.batch = batches.empty()
                          ? std::min(default_batch(sizes[i]),
                                     std::max<uint64_t>(span_bytes / std::max<uint64_t>(sizes[i], 1), 1))
                          : batches[batches.size() == 1 ? 0 : i];
        if (row.size == 0 || row.batch == 0) throw Failure{"0 bytes or 0 pages measure nothing"};
        if (row.size > span_bytes || row.batch > span_bytes / row.size)
          throw Failure{fmt::format("{} pages of {} do not fit into a --span of {}", row.batch,
                                    format_size(static_cast<double>(row.size)),
                                    format_size(static_cast<double>(span_bytes)))};
        rows.push_back(row);
      }
    }
  }
  rows.push_back({"immediate", "both", 0, 1});
  return rows;
}

void need_rails_between_processes(const std::vector<std::string>& rails) {
  for (const std::string& rail : rails)
    if (rail.starts_with("loopback:"))
      throw Failure{fmt::format(
          "--fabric {}: loopback joins engines of one process, and here are two. Name other rails, "
          "such as 'ofi:tcp;ofi_rxm@127.0.0.1'",
          rail)};
}

void run_fabric_bench(const FabricBenchOptions& options, const CommonOptions& common) {
  need_rails_between_processes(options.rails);
  Crew crew;
  std::string invitation = options.connect;
  if (invitation.empty()) {
    Child& owner = crew.start("owner", "bench-fabric-owner", configuration_of(options));
    invitation = crew.expect(owner, "invitation", kOpensWithin).at("invitation");
  }
  if (!options.listen.empty()) {
    tell(common.errors.stream(),
         fmt::format("on the other host: towline bench --fabric RAILS --connect {}\n", invitation));
    while (true) (void)crew.receive(milliseconds{60'000});
  }
  json configuration = configuration_of(options);
  configuration["invitation"] = invitation;
  if (!options.connect.empty()) configuration["listen"] = "*:0";  // the owner has to reach this side too
  Child& mover = crew.start("mover", "bench-fabric-mover", configuration);
  const json report = crew.expect(mover, "rows", kFinishesWithin);
  crew.finish();
  if (common.json) {
    print_json(report, JsonLayout::kIndented);
  } else {
    fmt::print("{}", render(report, common.output));
  }
  for (const json& row : report.at("rows"))
    if (row.at("wrong_bytes") != 0) throw Failure{"bytes arrived wrong"};
}

}  // namespace tool::bench

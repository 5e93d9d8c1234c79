#include "ls.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <towline/storage.hpp>
#include <towline/towline.hpp>

#include "cp/place.h"
#include "failure.h"
#include "json_output.h"
#include "storage_schemes.h"
#include "units.h"

namespace tool {

namespace {

using nlohmann::json;

std::string layout_of(const towline::View& view) {
  std::string text;
  for (const uint64_t count : view.shape()) text += fmt::format("{} x ", count);
  return text + format_size(static_cast<double>(view.layout().element_bytes));
}

json list_regions(const cp::Place& place) {
  constexpr std::array kKinds = {"dram", "vram", "file", "block", "object"};
  constexpr std::array kAccess = {"none", "read", "write", "all"};
  const towline::Agent agent("towline-ls", {.listen = "none"});
  const towline::Peer peer = agent.connect(place.address);
  json entries = json::array();
  const auto regions = peer.regions();
  if (!place.name.empty()) (void)peer.region_info(place.name);  // throws: there is none
  if (place.numbered) cp::check_number(place, peer, regions.size());
  for (size_t i = 0; i < regions.size(); ++i) {
    const towline::RegionInfo& region = regions[i];
    const std::string name = peer.region_name(region.key);
    if (place.numbered ? i != place.region : !place.name.empty() && name != place.name) continue;
    const bool by_host = place.address.find('/') == std::string::npos && !place.address.starts_with("unix:");
    const std::string which = name.empty() ? fmt::format("#{}", i) : (by_host ? "/" : "#") + name;
    json entry = {{"place", fmt::format("peer:{}{}", place.address, which)},
                  {"bytes", region.bytes},
                  {"kind", kKinds[region.kind % kKinds.size()]},
                  {"access", kAccess[region.access & 3]}};
    if (!name.empty()) {
      if (const towline::View view = peer.region(name); view.layout().dimensions != 0)
        entry["layout"] = layout_of(view);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

json list_store(const cp::Place& place) {
  const towline::Agent agent("towline-ls", {.listen = "none", .config = plugins_for({place.uri})});
  json entries = json::array();
  if (!place.is_object()) {
    const towline::StorageInfo info = agent.query_storage(place.uri);
    if (info.exists == 0) throw Failure{fmt::format("{}: no such file", place.uri)};
    entries.push_back({{"place", place.uri}, {"bytes", info.bytes}});
    return entries;
  }
  for (const auto& [uri, info] : agent.list_storage(place.uri))
    entries.push_back({{"place", uri}, {"bytes", info.bytes}});
  return entries;
}

}  // namespace

nlohmann::json list_place(const std::string& text) {
  const cp::Place place = cp::parse_place(text);
  return place.is_peer() ? list_regions(place) : list_store(place);
}

void add_ls_command(CLI::App& app, CommonOptions& common) {
  auto* command =
      app.add_subcommand("ls", "List the memory of a peer, or what a store holds, for `towline cp`");
  auto place = std::make_shared<std::string>();
  command
      ->add_option(
          "place", *place,
          "peer:HOST:PORT[/NAME], file:PATH, or a prefix of objects below s3://BUCKET/, az:// or gs://")
      ->required();
  command->add_flag("--json", common.json, "Print the entries as JSON");
  command->callback([place, &common] {
    const json entries = list_place(*place);
    if (common.json) {
      print_json({{"entries", entries}}, JsonLayout::kLine);
      return;
    }
    for (const json& entry : entries) {
      fmt::print("{}  {}", common.output.bold(entry["place"].get<std::string>()),
                 format_size(entry["bytes"].get<double>()));
      if (entry.contains("kind"))
        fmt::print("  {}  access {}", entry["kind"].get<std::string>(), entry["access"].get<std::string>());
      if (entry.contains("layout")) fmt::print("  {}", entry["layout"].get<std::string>());
      fmt::print("\n");
    }
  });
}

}  // namespace tool

#include "info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <towline/fabric.h>
#include <CLI/CLI.hpp>
#include <towline/towline.hpp>

#include "json_output.h"
#include "units.h"

namespace tool {
namespace {

using nlohmann::json;

std::string join(const json& list) {
  std::vector<std::string> texts;
  for (const json& item : list) texts.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  return fmt::format("{}", fmt::join(texts, ", "));
}

// The longest time from a failure to the fence, and what decides it.
std::string fence(const json& backend) {
  const std::string reason = backend.value("fence_reason", "");
  if (!backend.contains("worst_fence_ns")) return reason.empty() ? "" : "unbounded: " + reason;
  const std::string time = format_duration(backend["worst_fence_ns"].get<double>() * 1e-9);
  return reason.empty() ? time : fmt::format("{}: {}", time, reason);
}

// One line for each thing that it moves: "read, write: dram here, file and block there; same process".
std::string moves(const json& backend) {
  std::string text;
  for (const json& move : backend.value("moves", json::array())) {
    text += fmt::format("\n{}: {} here, {} there; {}", join(move.value("ops", json::array())),
                        join(move.value("local", json::array())), join(move.value("remote", json::array())),
                        move.value("where", "?"));
  }
  return text;
}

// The things that a backend's parts have never met.
std::string never_met(const json& told) {
  std::string text;
  for (const json& entry : told.value("never_met", json::array()))
    text += fmt::format("\nnever met: {}: {}", entry.value("part", "?"), entry.value("what", "?"));
  return text;
}

// Rails one by one; what else a backend tells, as it is.
std::string details(json told) {
  if (!told.is_object()) return "\n" + told.dump();
  if (!told.contains("rails")) {
    const std::string missing = never_met(told);
    told.erase("never_met");
    return "\n" + told.dump() + missing;
  }
  std::string text = "\nrails: " + told.value("chosen", "");
  std::size_t number = 0;
  for (const json& rail : told["rails"]) {
    const int node = rail.value("numa_node", -1);
    text += fmt::format("\n  {}: {}, {}{}, {} moved", number++, rail.value("name", "?"),
                        rail.value("state", "?"), node < 0 ? "" : fmt::format(", NUMA node {}", node),
                        format_size(rail.value("bytes", 0.0)));
  }
  for (const json& near : told.value("near", json::array()))
    text +=
        fmt::format("\n  nearest to {}: {}", near.value("to", "?"), join(near.value("rails", json::array())));
  return text + never_met(told);
}

// The column beside it says that it is not usable.
std::string why_not(const json& backend) {
  constexpr std::string_view kSaid = "not usable here: ";
  const std::string reason = backend.value("reason", "no reason given");
  return reason.starts_with(kSaid) ? reason.substr(kSaid.size()) : reason;
}

std::string render_backends(const json& backends, const json& not_asked_for, const Terminal& terminal) {
  using enum Table::Align;
  Table table{{{"backend", kLeft}, {"usable", kLeft}, {"memory", kLeft}, {"about", kWrap}}};
  for (const json& backend : backends) {
    const bool usable = backend.value("usable", false);
    std::string about = backend.value("description", "");
    if (!usable) about = why_not(backend);
    if (const std::string traits = join(backend.value("traits", json::array())); !traits.empty())
      about += "\n" + traits;
    about += moves(backend);
    if (backend.contains("details")) about += details(backend["details"]);
    table.add({backend.value("name", "?"), usable ? terminal.green("yes") : terminal.red("no"),
               join(backend.value("kinds", json::array())), about});
  }
  std::string text = table.render(terminal);
  if (!not_asked_for.empty())
    text += fmt::format("{}: {} (TOWLINE_BACKENDS={} looks at one)\n", terminal.bold("Not asked for"),
                        join(not_asked_for), not_asked_for[0].get<std::string>());
  text +=
      "\n" + terminal.bold("Fences") + ": after a failure, until nothing of a transfer can land any more\n";
  Table fences{{{"backend", kLeft}, {"at worst", kWrap}}};
  for (const json& backend : backends) {
    if (const std::string at_worst = fence(backend); !at_worst.empty())
      fences.add({backend.value("name", "?"), at_worst});
  }
  return text + fences.render(terminal);
}

// GPUs, NICs and NUMA nodes, and which rails serve what.
std::string render_fabric(const json& fabric, const Terminal& terminal) {
  const json gpus = fabric.value("gpus", json::array());
  const json ports = fabric.value("ports", json::array());
  if (gpus.empty() && ports.empty()) return {};
  const auto node_of = [](const json& device) {
    const int node = device.value("numa_node", -1);
    return node < 0 ? std::string{} : fmt::format("NUMA node {}", node);
  };
  using enum Table::Align;
  Table table{{{"device", kLeft}, {"at", kLeft}, {"", kLeft}, {"", kWrap}}};
  for (const json& gpu : gpus)
    table.add({"GPU", gpu.value("address", "?"), node_of(gpu),
               "nearest rails: " + join(gpu.value("near", json::array()))});
  for (const json& port : ports)
    table.add({port.value("device", "?"), port.value("address", ""), node_of(port),
               fmt::format("{}, {}; {}", port.value("state", "?"), port.value("rate", "?"),
                           port.value("chosen", false) ? "rail " + port.value("rail", "?") : "not used")});
  for (const json& node : fabric.value("numa_nodes", json::array()))
    table.add({fmt::format("node {}", node.value("id", 0)), "", "",
               "rails of its memory: " + join(node.value("near", json::array()))});
  return terminal.bold("Fabric") + ": " + fabric.value("choice", "") + "\n" + table.render(terminal) + "\n";
}

std::string render_topology(const json& topology, const json& places, const Terminal& terminal) {
  std::string text = terminal.bold("Machine") + "\n";
  text += fmt::format("  processors  {} online, {} for this process\n", topology.value("online_cpus", 0),
                      topology.value("allowed_cpus", 0));
  for (const json& node : topology.value("numa_nodes", json::array())) {
    text +=
        fmt::format("  NUMA node {} {} of memory, {} processors\n", node.value("id", 0),
                    format_size(node.value("memory_bytes", 0.0)), node.value("cpus", json::array()).size());
  }
  for (std::size_t i = 0; i < places.size(); ++i)
    text += fmt::format("  worker {}    {}\n", i, places[i].value("why", "?"));
  for (const json& size : topology.value("huge_pages", json::array())) {
    text += fmt::format("  huge pages  {}: {} reserved, {} free\n", format_size(size.value("bytes", 0.0)),
                        size.value("reserved", 0), size.value("free", 0));
  }
  return text;
}

}  // namespace

json never_met_beside_backends() {
  return json::array({{{"part", "experts"}, {"what", "a NIC between hosts, and a second machine"}}});
}

std::string render_info(const json& info, const Terminal& terminal) {
  std::string text = terminal.bold(fmt::format("Towline {}", towline::version())) + "\n\n";
  text += render_backends(info.value("backends", json::array()), info.value("not_asked_for", json::array()),
                          terminal) +
          "\n";
  if (info.contains("never_met"))
    text += fmt::format("{}{}\n\n", terminal.bold("Beside the backends"), never_met(info));
  if (const auto listen = info.value("listen", json::array()); !listen.empty()) {
    const json keys = info.value("secure", json());
    const std::string secured = keys.is_string() ? keys.get<std::string>() : "in the clear";
    text += fmt::format("{}: an agent here would listen at {}; {}\n\n", terminal.bold("Addresses"),
                        join(listen), secured);
  }
  text += render_fabric(info.value("fabric", json::object()), terminal);
  return text + render_topology(info.value("topology", json::object()),
                                info.value("worker_places", json::array()), terminal);
}

void add_info_command(CLI::App& app, CommonOptions& common) {
  auto* command =
      app.add_subcommand("info", "Show the backends usable here, why others are not, and the machine");
  command->add_flag("--json", common.json, "Print all of it as JSON");
  command->callback([&common] {
    const towline::Agent agent{"towline-info"};
    json info = json::parse(agent.info());
    info["never_met"] = never_met_beside_backends();
    size_t needed = 0;
    if (towline_fabric_topology(nullptr, 0, &needed) >= 0) {
      std::string fabric(needed, '\0');
      if (towline_fabric_topology(fabric.data(), fabric.size(), &needed) >= 0)
        info["fabric"] = json::parse(fabric.c_str(), nullptr, false);
    }
    if (common.json) {
      print_json(std::move(info), JsonLayout::kIndented);
    } else {
      fmt::print("{}", render_info(info, common.output));
    }
  });
}

}  // namespace tool

#include "serve.h"

#include <fmt/format.h>

#include <towline/limits.h>
#include <CLI/CLI.hpp>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <towline/towline.hpp>
#include <vector>

#include "buffer.h"
#include "failure.h"
#include "json_output.h"
#include "signals.h"
#include "streams.h"
#include "units.h"

namespace tool {

namespace {

using nlohmann::json;

struct ServeOptions {
  std::string name = "serve";
  std::vector<std::string> memory;
  std::string listen = "127.0.0.1:0";
  std::string advertise;
  std::string kind = "shared";
  std::string access = "all";
  bool guarded = false;
};

towline::Access access_of(const std::string& text) {
  if (text == "read") return towline::Access::kRead;
  return text == "write" ? towline::Access::kWrite : towline::Access::kAll;
}

void serve(const ServeOptions& options, const CommonOptions& common) {
  const Signals signals;
  uint64_t wanted = 0;
  std::vector<uint64_t> sizes;
  std::vector<std::string> names;
  for (const std::string& text : options.memory) {
    const size_t mark = text.rfind('=');
    names.push_back(mark == std::string::npos ? "" : text.substr(0, mark));
    sizes.push_back(parse_size(mark == std::string::npos ? text : text.substr(mark + 1)));
    wanted += sizes.back();
  }
  if (const uint64_t free = towline_memory_available(); wanted > free)
    throw Failure{fmt::format("--region: {} in all, but this host or the cgroup has only {} free",
                              format_size(static_cast<double>(wanted)),
                              format_size(static_cast<double>(free)))};
  std::deque<Buffer> buffers;
  for (const uint64_t size : sizes) buffers.emplace_back(parse_buffer_kind(options.kind), size);
  const towline::Agent agent(options.name, {.listen = options.listen, .advertise = options.advertise});
  if (agent.address().empty())
    throw Failure{fmt::format("--listen {}: peers could not connect; give HOST:PORT", options.listen)};
  std::vector<towline::Region> regions;
  json places = json::array();
  for (const Buffer& buffer : buffers) {
    const std::string& name = names[regions.size()];
    regions.push_back(agent.register_memory(
        towline::dram(buffer.data(), buffer.size()),
        {.access = access_of(options.access), .guarded = options.guarded, .name = name}));
    const std::string which = name.empty() ? fmt::format("#{}", regions.size() - 1) : "/" + name;
    places.push_back({{"place", fmt::format("peer:{}{}", agent.address(), which)}, {"bytes", buffer.size()}});
  }
  if (common.json) {
    print_json({{"name", options.name}, {"address", agent.address()}, {"memory", places}}, JsonLayout::kLine);
  } else {
    for (const json& place : places) {
      fmt::print("{}  {}\n", common.output.bold(place["place"].get<std::string>()),
                 format_size(place["bytes"].get<double>()));
    }
    tell(stderr, "serving until interrupted\n");
  }
  finish_output(stdout);  // which has the address
  (void)signals.wait(-1);
}

}  // namespace

void add_serve_command(CLI::App& app, CommonOptions& common) {
  auto* command = app.add_subcommand("serve", "Hold memory that peers read and write, for `towline cp`");
  auto options = std::make_shared<ServeOptions>();
  command->add_option("--region", options->memory, "A region of memory; may be given several times")
      ->type_name("[NAME=]SIZE")
      ->required();
  command->add_option("--name", options->name, "Of the agent")->capture_default_str();
  command->add_option("--listen", options->listen, "Where peers connect")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  command->add_option("--advertise", options->advertise, "The address that peers are told instead")
      ->type_name("HOST[:PORT]");
  command->add_option("--memory", options->kind, "shared (peers map it) or private (as malloc gives it)")
      ->capture_default_str();
  command->add_option("--access", options->access, "What peers may do: read, write or all")
      ->check(CLI::IsMember({"read", "write", "all"}))
      ->capture_default_str();
  command->add_flag("--guarded", options->guarded, "Check every access here: peers do not map the memory");
  command->add_flag("--json", common.json, "Print the places as JSON");
  command->footer(
      "Prints a place for each region, for use with `towline cp`, and keeps the memory until Ctrl-C. Peers "
      "of "
      "this\n"
      "host and user reach it. With --listen ADDRESS:PORT other hosts do as well, and each that reaches the "
      "port\n"
      "can use the memory.\n\n"
      "Examples:\n"
      "  towline serve --region kv=4GiB --listen 10.0.0.7:7700\n"
      "  towline serve --region 1GiB --region 1GiB --access read");
  command->callback([options, &common] { serve(*options, common); });
}

}  // namespace tool

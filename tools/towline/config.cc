#include "config.h"

#include <fmt/format.h>
#include <towline/observe.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <towline/towline.hpp>

#include "failure.h"
#include "json_output.h"

namespace tool {
namespace {

using nlohmann::json;

struct ConfigOptions {
  std::string filter;
  std::string text;
  bool all = false;
  bool set_only = false;
};

}  // namespace

json read_settings(const std::string& text) {
  return json::parse(towline::detail::read_text([&](char* out, size_t capacity, size_t* needed) {
    return towline_settings(text.empty() ? nullptr : text.c_str(), out, capacity, needed);
  }));
}

json chosen_settings(const json& settings, const std::string& filter, bool all, bool set_only) {
  json chosen = settings;
  chosen["settings"] = json::array();
  bool found = false;
  for (const json& setting : settings.value("settings", json::array())) {
    const bool is_set = setting.value("source", "") != "default";
    if (setting.value("name", "").find(filter) == std::string::npos) continue;
    found = true;
    if (set_only && !is_set) continue;
    if (setting.value("promised", true) || is_set || all || !filter.empty())
      chosen["settings"].push_back(setting);
  }
  if (!found)
    throw Failure{fmt::format("no setting has '{}' in its name; towline config --all lists them", filter)};
  return chosen;
}

std::string render_config(const json& settings, const Terminal& terminal) {
  using enum Table::Align;
  Table table{{{"setting", kLeft}, {"value", kLeft}, {"from", kLeft}, {"meaning", kWrap}}};
  for (const json& setting : settings.value("settings", json::array())) {
    const std::string source = setting.value("source", "");
    const std::string value = setting.value("value", "");
    const std::string bounds = setting.value("bounds", "");
    table.add({setting.value("name", ""), value.empty() ? "-" : value,
               source == "default" ? source : terminal.bold(source),
               fmt::format("{}{}{}", setting.value("meaning", ""), bounds.empty() ? "" : " (" + bounds + ")",
                           setting.value("promised", true) ? "" : " [tuning]")});
  }
  std::string text = table.render(terminal);
  for (const json& setting : settings.value("settings", json::array())) {
    if (setting.contains("wrong"))
      text += terminal.red(fmt::format("wrong: {}\n", setting.value("wrong", "")));
  }
  for (const json& unknown : settings.value("unknown", json::array())) {
    const std::string nearest = unknown.value("nearest", "");
    text += terminal.red(fmt::format("unknown: {}{}\n", unknown.value("name", ""),
                                     nearest.empty() ? "" : "; " + nearest + " is the nearest"));
  }
  return text;
}

void add_config_command(CLI::App& app, CommonOptions& common) {
  auto* command = app.add_subcommand("config", "Show the settings: what is in force, and from where");
  auto options = std::make_shared<ConfigOptions>();
  command->add_option("FILTER", options->filter, "Only settings whose names contain this, tuning included");
  command->add_flag("--all", options->all, "Also settings for tuning, which may change in any version");
  command->add_flag("--set", options->set_only, "Only what is not the default");
  command->add_option("--config", options->text, "As an agent's option: TOML text over environment and file")
      ->type_name("TOML");
  command->add_flag("--json", common.json, "Print them as JSON");
  command->footer(
      "Examples:\n  towline config\n  towline config tcp\n  TOWLINE_PEER_LOST=20s towline config --set");
  command->callback([&common, options] {
    const json chosen =
        chosen_settings(read_settings(options->text), options->filter, options->all, options->set_only);
    if (common.json)
      print_json(chosen, JsonLayout::kIndented);
    else
      fmt::print("{}", render_config(chosen, common.output));
  });
}

}  // namespace tool

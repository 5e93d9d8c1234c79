#include "completions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "failure.h"

namespace tool {
namespace {

struct Completed {
  std::string name;
  std::string description;
};

std::vector<const CLI::App*> visible_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::vector<Completed> options_of(const CLI::App& app) {
  std::vector<Completed> options;
  for (const CLI::Option* option :
       app.get_options([](const CLI::Option* one) { return !one->get_group().empty(); })) {
    for (const std::string& name : option->get_lnames())
      options.push_back({"--" + name, option->get_description()});
  }
  return options;
}

std::string names(const std::vector<Completed>& completed) {
  std::vector<std::string_view> list;
  for (const Completed& one : completed) list.push_back(one.name);
  return fmt::format("{}", fmt::join(list, " "));
}

std::vector<Completed> command_names(const CLI::App& app) {
  std::vector<Completed> commands;
  for (const CLI::App* command : visible_commands(app)) {
    commands.push_back({command->get_name(), command->get_description()});
  }
  return commands;
}

std::string render_bash(const CLI::App& app) {
  std::string cases;
  for (const CLI::App* command : visible_commands(app)) {
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), names(options_of(*command)));
  }
  return fmt::format(R"(_towline() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words
  case ${{COMP_WORDS[1]}} in
{}    *) words="{} {}" ;;
  esac
  if [[ $previous == --trace || $previous == --storage || $previous == --state ||
        ${{COMP_WORDS[1]}} == cp && $current != -* ]]; then
    COMPREPLY=($(compgen -f -- "$current"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}}
complete -F _towline towline
)",
                     cases, names(command_names(app)), names(options_of(app)));
}

// For zsh's _describe: 'name:description', quotes and colons told apart.
std::string described(const std::vector<Completed>& completed) {
  std::string text;
  const auto escape = [](const std::string& raw, char special, std::string_view instead) {
    std::string escaped;
    for (const char letter : raw)
      escaped += letter == special ? std::string{instead} : std::string(1, letter);
    return escaped;
  };
  for (const Completed& one : completed) {
    text += fmt::format(" '{}:{}'", one.name, escape(escape(one.description, '\'', "'\\''"), ':', "\\:"));
  }
  return text;
}

std::string render_zsh(const CLI::App& app) {
  std::string cases;
  for (const CLI::App* command : visible_commands(app)) {
    cases += fmt::format("    {}) choices=({}) ;;\n", command->get_name(), described(options_of(*command)));
  }
  return fmt::format(R"(#compdef towline
_towline() {{
  local -a choices
  if [[ $words[CURRENT-1] == --trace || $words[CURRENT-1] == --storage || $words[CURRENT-1] == --state ||
        $words[2] == cp && $words[CURRENT] != -* ]]; then _files; return; fi
  if (( CURRENT == 2 )); then
    choices=({}{})
    _describe 'command' choices
    return
  fi
  case $words[2] in
{}  esac
  _describe 'option' choices
}}
compdef _towline towline
)",
                     described(command_names(app)), described(options_of(app)), cases);
}

bool takes_file(const std::string& option) {
  return option == "--trace" || option == "--storage" || option == "--state";
}

std::string render_fish(const CLI::App& app) {
  std::string text = "complete -c towline -f\n";
  const auto quoted = [](const std::string& raw) {
    std::string escaped;
    for (const char letter : raw) escaped += letter == '\'' ? std::string{"\\'"} : std::string(1, letter);
    return escaped;
  };
  for (const Completed& command : command_names(app)) {
    text += fmt::format("complete -c towline -n __fish_use_subcommand -a {} -d '{}'\n", command.name,
                        quoted(command.description));
  }
  for (const CLI::App* command : visible_commands(app)) {
    for (const Completed& option : options_of(*command)) {
      text += fmt::format("complete -c towline -n '__fish_seen_subcommand_from {}' -l {} -d '{}'{}\n",
                          command->get_name(), option.name.substr(2), quoted(option.description),
                          takes_file(option.name) ? " -r -F" : "");
    }
    if (command->get_name() == "cp") text += "complete -c towline -n '__fish_seen_subcommand_from cp' -F\n";
  }
  return text;
}

}  // namespace

std::string render_completions(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return render_bash(app);
  if (shell == "zsh") return render_zsh(app);
  if (shell == "fish") return render_fish(app);
  throw Failure{fmt::format("no completions for '{}': bash, zsh or fish", shell)};
}

void add_completions_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("completions", "Print a script with which a shell completes this command");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer("Example: source <(towline completions bash)");
  command->callback([&app, shell] { fmt::print("{}", render_completions(app, *shell)); });
}

}  // namespace tool

#include "commands.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

namespace tool {
namespace {

// What an option takes: the word in the help, without the mark of a list.
std::string taken_by(const CLI::Option& option) {
  std::string type = option.get_items_expected_max() == 0 ? "nothing" : option.get_type_name();
  if (const size_t list = type.find(",.."); list != std::string::npos) type.resize(list);
  return type;
}

TEST(Commands, an_option_takes_the_same_in_every_command) {
  CLI::App app;
  CommonOptions common;
  add_commands(app, common);
  std::map<std::string, std::pair<std::string, std::string>>
      known;  // option: what it takes, in which command
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        const auto [first, is_new] = known.try_emplace(name, taken_by(*option), command->get_name());
        EXPECT_EQ(first->second.first, taken_by(*option))
            << "--" << name << " of " << first->second.second << " and of " << command->get_name();
      }
    }
  }
  for (const char* duration : {"time", "timeout", "interval", "patience"})
    EXPECT_EQ(known.at(duration).first, "DURATION") << "--" << duration;
}

int exit_code_of(const std::string& arguments) {
  const int status = std::system((TOWLINE_TOOL " " + arguments + " >/dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// As a daemon may be that starts it: what is ignored there is ignored here, and no child's end can be waited for.
TEST(Commands, children_are_waited_for_where_the_parent_ignores_its_own) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGCHLD, SIG_IGN);
    ::execl(TOWLINE_TOOL, "towline", "bench", "--sizes", "4KiB", "--iterations", "3", "--json",
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Commands, a_line_that_makes_no_sense_exits_with_2) {
  for (const char* line : {"foo", "", "info --foo", "info foo", "cp", "bench --iterations many"})
    EXPECT_EQ(exit_code_of(line), 2) << line;
  for (const char* line : {"--help", "--version", "info --help"}) EXPECT_EQ(exit_code_of(line), 0) << line;
}

}  // namespace
}  // namespace tool

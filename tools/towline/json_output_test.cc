// The commands as somebody runs them, in processes of their own.
#include "json_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "commands.h"

namespace tool {
namespace {

enum class LineEnds : uint8_t { kByItself, kWhenTold };

struct JsonLine {
  std::string arguments;
  LineEnds ends = LineEnds::kByItself;
};

struct Printed {
  nlohmann::json object;
  int exit_code = -1;  // -1: a signal ended it
};

// What `towline` printed: all of it, or the first line of a command that runs on, which is then told to end. `pending`: a
// signal that has come before it begins to take signals.
Printed run(const JsonLine& line, int pending = 0) {
  int pipes[2];
  if (::pipe2(pipes, O_CLOEXEC) != 0) return {};
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (pending != 0) {
      sigset_t blocked;
      sigemptyset(&blocked);
      sigaddset(&blocked, pending);
      sigprocmask(SIG_BLOCK, &blocked, nullptr);
      ::raise(pending);
    }
    ::dup2(pipes[1], 1);
    const std::string words = "exec " TOWLINE_TOOL " " + line.arguments;
    ::execl("/bin/sh", "sh", "-c", words.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(pipes[1]);
  std::string text;
  char letter = 0;
  while (::read(pipes[0], &letter, 1) == 1) {
    text += letter;
    if (line.ends == LineEnds::kWhenTold && letter == '\n') break;
  }
  if (line.ends == LineEnds::kWhenTold) ::kill(pid, SIGTERM);
  ::close(pipes[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return {nlohmann::json::parse(text, nullptr, false), WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

nlohmann::json json_of(const JsonLine& line) {
  const Printed printed = run(line);
  EXPECT_EQ(printed.exit_code, 0) << line.arguments;
  return printed.object;
}

// The command lines that print JSON, by command. `bench --fabric` needs a rail: tests/interop/fabric_bench.py.
std::multimap<std::string, JsonLine> json_lines(const std::string& folder) {
  const std::string rows = " --sizes 4KiB --iterations 1 --warmup 0";
  return {
      {"info", {""}},
      {"metrics", {""}},
      {"metrics", {"--watch --interval 10ms", LineEnds::kWhenTold}},
      {"config", {""}},
      {"bench", {"--from initiator --batches 1 --span 1MiB" + rows}},
      {"bench", {"--from memory --batches 1 --span 1MiB --storage " + folder + rows}},
      {"bench", {"--collective barrier --ranks 2 --peers none --sizes 4KiB --iterations 1"}},
      {"replay", {"--requests 1 --layers 2"}},
      {"replay", {"--requests 1 --layers 2 --by prefill"}},
      {"cp", {folder + "/from " + folder + "/to"}},
      {"ls", {"file:" + folder + "/from"}},
      {"serve", {"--region 4KiB --listen 127.0.0.1:0", LineEnds::kWhenTold}},
  };
}

TEST(JsonOutput, every_command_that_takes_json_prints_an_object_with_the_schema) {
  const std::string folder = testing::TempDir() + "towline_json_" + std::to_string(getpid());
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  std::ofstream(folder + "/from") << std::string(4096, 'x');
  const auto lines = json_lines(folder);
  CLI::App app;
  CommonOptions common;
  add_commands(app, common);
  size_t commands = 0;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string& name = command->get_name();
    if (command->get_option_no_throw("--json") == nullptr) continue;
    ++commands;
    const auto [first, last] = lines.equal_range(name);
    EXPECT_NE(first, last) << name << " takes --json: add a line for it to json_lines()";
    for (auto line = first; line != last; ++line) {
      const JsonLine whole{name + " --json " + line->second.arguments, line->second.ends};
      const nlohmann::json printed = json_of(whole);
      ASSERT_TRUE(printed.is_object()) << whole.arguments << " printed " << printed;
      EXPECT_EQ(printed.value("schema", 0), kJsonSchema) << whole.arguments;
    }
  }
  EXPECT_GE(commands, 8u);
  std::filesystem::remove_all(folder);
}

void expect_failure(const Printed& printed, int exit_code, const std::string& part) {
  EXPECT_EQ(printed.exit_code, exit_code) << part;
  ASSERT_TRUE(printed.object.is_object()) << part;
  EXPECT_EQ(printed.object.size(), 3u) << printed.object;
  EXPECT_EQ(printed.object.value("schema", 0), kJsonSchema);
  EXPECT_EQ(printed.object.value("exit_code", 0), exit_code);
  EXPECT_NE(printed.object.value("error", "").find(part), std::string::npos) << printed.object;
}

TEST(JsonOutput, a_failure_is_an_object_with_the_error_and_the_exit_code) {
  expect_failure(run({"cp --json /no/such/file /tmp/to 2>/dev/null"}), 1, "no such file");
  expect_failure(run({"info --nosuch --json 2>/dev/null"}), 2, "--nosuch");
  expect_failure(run({"bench --json --iterations many 2>/dev/null"}), 2, "many");
  expect_failure(run({"nosuch --json 2>/dev/null"}), 2, "nosuch");
  expect_failure(run({"cp --json=true /no/such/file /tmp/to 2>/dev/null"}), 1, "no such file");
  expect_failure(run({"info --json=1 --nosuch 2>/dev/null"}), 2, "--nosuch");
  expect_failure(run({"replay --json --requests 1 --layers 2 2>/dev/null"}, SIGINT), 130, "interrupted");
}

TEST(JsonOutput, a_failure_is_no_object_where_json_is_turned_off) {
  for (const char* arguments :
       {"cp --json=false /no/such/file /tmp/to 2>/dev/null", "cp /no/such/file /tmp/to 2>/dev/null"}) {
    const Printed printed = run({arguments});
    EXPECT_EQ(printed.exit_code, 1) << arguments;
    EXPECT_TRUE(printed.object.is_discarded()) << printed.object;
  }
}

TEST(JsonOutput, names_that_are_not_utf8_are_printed) {
  testing::internal::CaptureStdout();
  print_json({{"destination", "caf\xe9"}}, JsonLayout::kLine);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(text, "{\"destination\":\"caf\uFFFD\",\"schema\":1}\n");
}

}  // namespace
}  // namespace tool

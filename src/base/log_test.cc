#include "base/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace towline {
namespace {

class LogTest : public testing::Test {
 protected:
  LogTest() {
    set_log_sink(&LogTest::take, this);
    set_log_level(LogLevel::kInfo);
  }
  ~LogTest() override {
    set_log_sink(nullptr, nullptr);
    set_log_level(LogLevel::kWarning);
  }

  static void take(void* context, LogLevel level, std::string_view message) {
    auto& lines = static_cast<LogTest*>(context)->lines_;
    lines.push_back(std::string(log_level_name(level)) + ": " + std::string(message));
    TOWLINE_LOG(kError, "from within the sink");  // dropped, and no deadlock
  }

  std::vector<std::string> lines_;
};

TEST_F(LogTest, LevelsDecideWhatArrivesAndWhatIsEvaluated) {
  int evaluated = 0;
  TOWLINE_LOG(kError, "broken: {}", 1);
  TOWLINE_LOG(kInfo, "plain");
  TOWLINE_LOG(kDebug, "{}", ++evaluated);
  set_log_level(LogLevel::kOff);
  TOWLINE_LOG(kError, "{}", ++evaluated);
  EXPECT_EQ(lines_, (std::vector<std::string>{"error: broken: 1", "info: plain"}));
  EXPECT_EQ(evaluated, 0);
}

TEST_F(LogTest, ThreadsDeliverOneMessageAtATime) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) TOWLINE_LOG(kInfo, "{} {}", t, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), 800u);
}

TEST_F(LogTest, WhatAPeerCallsItselfCanNeitherForgeALineNorCommandATerminal) {
  TOWLINE_LOG(kInfo, "peer '{}'", "x'\ninfo: all is well");
  TOWLINE_LOG(kInfo, "peer '{}'",
              "\x1b]0;mine\x07\xc2\x9b"
              "2J\r\x7f");
  TOWLINE_LOG(kInfo, "peer '{}'", "\xff\xe2\x82");
  TOWLINE_LOG(kInfo, "peer '{}'", "Zürich \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(lines_, (std::vector<std::string>{
                        "info: peer 'x' info: all is well'",
                        "info: peer '\\x1b]0;mine\\x07\\xc2\\x9b2J\\x0d\\x7f'",
                        "info: peer '\\xff\\xe2\\x82'",
                        "info: peer 'Zürich \xe2\x82\xac \xf0\x9f\x98\x80'",
                    }));
}

TEST_F(LogTest, AMessageIsBounded) {
  TOWLINE_LOG(kInfo, "{}", std::string(1 << 20, 'x'));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_LT(lines_[0].size(), 8192u);
  EXPECT_NE(lines_[0].find("more bytes"), std::string::npos);
}

TEST_F(LogTest, ARepeatedMessageIsHeldBack) {
  for (int i = 0; i < 100; ++i)
    TOWLINE_LOG_EVERY(kWarning, uint64_t{3600} * 1'000'000'000, "lane {} is full", i);
  EXPECT_EQ(lines_, std::vector<std::string>{"warning: lane 0 is full"});
}

TEST(LogRateLimitTest, PassesOncePerIntervalAndCountsTheRest) {
  detail::LogRateLimit limit(100);
  uint64_t suppressed = 99;
  EXPECT_TRUE(limit.pass(1000, suppressed));
  EXPECT_EQ(suppressed, 0u);
  EXPECT_FALSE(limit.pass(1001, suppressed));
  EXPECT_FALSE(limit.pass(1099, suppressed));
  EXPECT_TRUE(limit.pass(1100, suppressed));
  EXPECT_EQ(suppressed, 2u);
}

TEST(LogLevelTest, NamesGoBothWays) {
  for (int level = 0; level <= 5; ++level) {
    EXPECT_EQ(log_level_from_name(log_level_name(static_cast<LogLevel>(level))),
              static_cast<LogLevel>(level));
  }
  EXPECT_FALSE(log_level_from_name("loud"));
}

// Whose threads are not there, and who finds the lock of a sink that one of them was in.
TEST(LogForkTest, AChildLogsAlthoughAThreadOfItsParentWasLogging) {
  static std::atomic<bool> inside;
  static std::atomic<bool> leave;
  inside = leave = false;
  set_log_sink(
      [](void*, LogLevel, std::string_view) {
        inside = true;
        while (!leave) std::this_thread::yield();
      },
      nullptr);
  std::thread logs([] { TOWLINE_LOG(kWarning, "for long"); });
  while (!inside) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    set_log_sink([](void*, LogLevel, std::string_view) { ::_exit(7); }, nullptr);
    TOWLINE_LOG(kWarning, "from the child");
    ::_exit(1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  leave = true;
  logs.join();
  set_log_sink(nullptr, nullptr);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST(LogDefaultSinkTest, WritesToStandardError) {
  testing::internal::CaptureStderr();
  TOWLINE_LOG(kWarning, "look {}", "here");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(text.starts_with("towline ")) << text;
  EXPECT_TRUE(text.ends_with("] warning: look here\n")) << text;
}

}  // namespace
}  // namespace towline

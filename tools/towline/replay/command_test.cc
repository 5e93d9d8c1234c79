#include "replay/command.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>

#include "failure.h"

namespace tool::replay {
namespace {

// The error with which the command refuses these arguments.
std::string refusal(const std::string& arguments) {
  CLI::App app;
  CommonOptions common;
  add_replay_command(app, common);
  try {
    app.parse("replay " + arguments);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "none";
}

TEST(ReplayCommand, OptionsOfTheOtherSideAreRefused) {
  for (const char* option : {"--trace t.jsonl", "--requests 3", "-n 3", "--seed 3", "--speed 2",
                             "--model qwen3-32b", "--layers 2", "--dtype fp8", "--page-tokens 32",
                             "--prefill-tp 2", "--by prefill", "--check full", "--spill file:/tmp"}) {
    const std::string text = refusal(std::string{"--role decode --connect 127.0.0.1:7700 "} + option);
    EXPECT_NE(text.find("is an option of the prefill side"), std::string::npos) << option << ": " << text;
  }
  EXPECT_EQ(refusal("--role prefill --in-flight 4"),
            "--in-flight is an option of the decode side: give it to --role decode");
}

TEST(ReplayCommand, PatienceIsADurationLikeEveryOther) {
  EXPECT_EQ(refusal("--patience 61m"),
            "--patience 61m: a duration from 1s to 1h is needed, such as 60s or 5m");
  EXPECT_EQ(refusal("--patience 0s"), "--patience 0s: a duration from 1s to 1h is needed, such as 60s or 5m");
  EXPECT_NE(refusal("--patience 5x").find("is not a duration such as"), std::string::npos);
  EXPECT_EQ(refusal("--patience 2m --role prefill --in-flight 4"),
            "--in-flight is an option of the decode side: give it to --role decode");
}

}  // namespace
}  // namespace tool::replay

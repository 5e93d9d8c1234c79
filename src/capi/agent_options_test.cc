// Settings that a program passes itself are checked: an unknown one is an error, not a warning.
#include <gtest/gtest.h>

#include <string>

#include "towline/towline.hpp"

namespace towline {
namespace {

TEST(AgentOptions, SettingsThatAreUnknownAreRefusedWithTheNearest) {
  std::string refused;
  try {
    const Agent agent{"agent", {.listen = "none", .config = "[peer]\nlos = \"1s\"\n"}};
  } catch (const Error& error) {
    refused = error.what();
    EXPECT_EQ(error.code(), Status::kInvalidArgument);
  }
  EXPECT_NE(refused.find("unknown setting peer.los; peer.lost is the nearest"), std::string::npos) << refused;
  const Agent agent{"agent", {.listen = "none", .config = "[peer]\nlost = \"1s\"\n"}};
  EXPECT_EQ(agent.name(), "agent");
}

}  // namespace
}  // namespace towline

#include "base/sync/timers.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace towline {
namespace {

TEST(Loop, WhatAnActionThrowsIsToldAndTheNextHasItsTurn) {
  std::string told;
  const auto failed = [&](const char* why) { told += why; };
  int done = 0;
  const auto throws = [] { throw std::out_of_range("map::at"); };
  Commands commands;
  commands.push(throws);
  commands.push([&] { ++done; });
  commands.run(failed);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(told, "map::at");
  Timers timers;
  timers.at(1, throws);
  timers.at(2, [&] { ++done; });
  timers.run(failed);
  EXPECT_EQ(done, 2);
  EXPECT_EQ(told, "map::atmap::at");
  EXPECT_EQ(timers.next_ns(), kNoDeadline);
}

}  // namespace
}  // namespace towline

#include "base/sync/timers.h"

#include <gtest/gtest.h>

#include <new>
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

TEST(Loop, WhatIsDoneAgainAndAgainGoesOnAfterItThrew) {
  const auto ignore = [](const char*) {};
  Timers timers;
  int done = 0;
  Timers::Id id = timers.every(1, [&, held = std::string(100, 'x')] {
    if (++done == 1) throw std::bad_alloc();
    EXPECT_EQ(held.size(), 100u);
    if (done == 3) timers.cancel(id);
  });
  while (id != 0) timers.run(ignore);
  timers.run(ignore);
  EXPECT_EQ(done, 3);
  EXPECT_EQ(timers.next_ns(), kNoDeadline);
}

}  // namespace
}  // namespace towline

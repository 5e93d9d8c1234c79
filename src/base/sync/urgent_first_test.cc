#include "base/sync/urgent_first.h"

#include <gtest/gtest.h>

#include <string>

namespace towline {
namespace {

std::string turns_of(UrgentFirst& turns, bool urgent, bool others, int count) {
  std::string seen;
  for (; count != 0; --count) seen += turns.take(urgent, others) ? 'u' : 'o';
  return seen;
}

TEST(UrgentFirst, LeavesOneTurnInEightToOthers) {
  UrgentFirst turns;
  EXPECT_EQ(turns_of(turns, true, true, 17), "uuuuuuuouuuuuuuou");
}

TEST(UrgentFirst, OwesNothingToWhoWasNotThere) {
  UrgentFirst turns;
  EXPECT_EQ(turns_of(turns, true, false, 20), std::string(20, 'u'));
  EXPECT_EQ(turns_of(turns, true, true, 8), "uuuuuuuo");
  EXPECT_EQ(turns_of(turns, false, true, 3), "ooo");
}

TEST(UrgentFirst, ATurnThatCameToNothingIsOwedStill) {
  UrgentFirst turns;
  EXPECT_EQ(turns_of(turns, true, true, 7), "uuuuuuu");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(turns.next(true, true));
  turns.took(false, true);
  EXPECT_TRUE(turns.next(true, true));
}

}  // namespace
}  // namespace towline

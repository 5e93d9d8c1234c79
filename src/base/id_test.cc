#include "base/id.h"

#include <gtest/gtest.h>

#include <unordered_set>

namespace towline {
namespace {

TEST(IdTest, RandomOnesDifferAndSurviveText) {
  std::unordered_set<Id> seen;
  for (int i = 0; i < 1000; ++i) {
    const Id id = Id::random();
    EXPECT_FALSE(id.is_none());
    EXPECT_TRUE(seen.insert(id).second);
    EXPECT_EQ(Id::from_hex(id.to_hex()), id);
  }
}

TEST(IdTest, TextIsFixedAndOrdered) {
  const Id id{0x0123456789abcdefULL, 0xfULL};
  EXPECT_EQ(id.to_hex(), "0123456789abcdef000000000000000f");
  EXPECT_EQ(Id::from_hex("0123456789ABCDEF000000000000000F"), id);
  EXPECT_LT((Id{1, 9}), (Id{2, 0}));
}

TEST(IdTest, MalformedTextIsRefused) {
  for (const char* text : {"", "0", "0123456789abcdef000000000000000", "0123456789abcdef000000000000000ff",
                           "0123456789abcdef000000000000000g", "0x23456789abcdef000000000000000f"}) {
    EXPECT_FALSE(Id::from_hex(text)) << text;
  }
}

}  // namespace
}  // namespace towline

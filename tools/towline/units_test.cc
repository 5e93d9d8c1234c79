#include "units.h"

#include <gtest/gtest.h>

#include "failure.h"

namespace tool {
namespace {

using namespace std::chrono_literals;

TEST(Units, SizesTakeBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("4KiB"), 4096u);
  EXPECT_EQ(parse_size("4k"), 4096u);
  EXPECT_EQ(parse_size("4KB"), 4000u);
  EXPECT_EQ(parse_size("1.5GiB"), 1610612736u);
  EXPECT_EQ(parse_sizes("4KiB,1MiB"), (std::vector<uint64_t>{4096, 1048576}));
}

TEST(Units, WhatIsNoSizeIsRefused) {
  for (const char* text : {"", "x", "4XB", "-1", "4KiBs", "nan", "inf", "1e30", "4,"}) {
    EXPECT_THROW((void)parse_sizes(text), Failure) << text;
  }
}

TEST(Units, DurationsTakeUnits) {
  EXPECT_EQ(parse_duration("500ms"), 500ms);
  EXPECT_EQ(parse_duration("1.5"), 1500ms);
  EXPECT_EQ(parse_duration("2m"), 2min);
  EXPECT_THROW((void)parse_duration("2 parsecs"), Failure);
}

TEST(Units, NumbersAreWrittenWithThreeDigits) {
  EXPECT_EQ(format_size(4096), "4 KiB");
  EXPECT_EQ(format_size(1610612736), "1.50 GiB");
  EXPECT_EQ(format_duration(12.34e-6), "12.3 us");
  EXPECT_EQ(format_duration(60e-9), "60 ns");
  EXPECT_EQ(format_duration(1.2), "1.20 s");
  EXPECT_EQ(format_rate(12.3e9), "12.30 GB/s");
  EXPECT_EQ(format_count(182790), "182,790");
  EXPECT_EQ(format_count(999), "999");
}

TEST(Units, FactorsAreNumbersThatEnd) {
  EXPECT_EQ(parse_factor("2.5"), 2.5);
  for (const char* text : {"nan", "inf", "1e400", "", "2x", "max", "-1"})
    EXPECT_LT(parse_factor(text), 0) << text;
}

TEST(Units, WholeNumbersHaveNoSign) {
  EXPECT_EQ(refuse_unless_whole("18446744073709551615"), "");
  for (const char* text : {"-1", "18446744073709551616", "1.5", "", "1e3", "0x10", " 1"})
    EXPECT_NE(refuse_unless_whole(text), "") << text;
}

}  // namespace
}  // namespace tool

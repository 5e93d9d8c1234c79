#include "bench/collective.h"

#include <gtest/gtest.h>

#include "failure.h"

namespace tool::bench {
namespace {

TEST(Collectives, AreTakenByNameOrAll) {
  EXPECT_EQ(parse_collectives("all_reduce,barrier"), (std::vector<std::string>{"all_reduce", "barrier"}));
  EXPECT_EQ(parse_collectives("all").size(), 13U);
  EXPECT_THROW((void)parse_collectives("all_reduce,"), Failure);
  EXPECT_THROW((void)parse_collectives("ponder"), Failure);
}

TEST(Collectives, UnevenPartsSumUpToTheSame) {
  EXPECT_EQ(uneven_parts(10, 4), (std::vector<uint64_t>{5, 15, 5, 15}));
  EXPECT_EQ(uneven_parts(1, 3), (std::vector<uint64_t>{1, 1, 1}));
  EXPECT_EQ(uneven_parts(3, 2), (std::vector<uint64_t>{2, 4}));
}

TEST(Collectives, BusBandwidthCountsWhatARankHasToSend) {
  EXPECT_EQ(bus_factor("all_reduce", 2), 1.0);
  EXPECT_EQ(bus_factor("all_reduce", 4), 1.5);
  EXPECT_EQ(bus_factor("all_gather", 4), 0.75);
  EXPECT_EQ(bus_factor("broadcast", 4), 1.0);
}

}  // namespace
}  // namespace tool::bench

#include "agent/prices.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "towline/plugin/v1.h"
#include "towline/towline.h"

namespace towline {
namespace {

PriceRow& row_of(const char* backend, uint32_t cost) {
  return prices_of(backend, cost).row(TOWLINE_WHERE_SAME_HOST, TOWLINE_WRITE, false);
}

TEST(Prices, BeginAsTheDeclaredCostSaysAndSayThatNothingWasMeasured) {
  const PriceRow& near = row_of("prices-near", 10);
  const PriceRow& far = row_of("prices-far", 100);
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{1} << 20, uint64_t{1} << 40}) {
    EXPECT_LT(near.of(bytes).ns, far.of(bytes).ns) << bytes;
    EXPECT_EQ(near.of(bytes).samples, 0u);
    EXPECT_FALSE(near.of(bytes).nearby);
    EXPECT_EQ(near.of(bytes).error_ns, near.of(bytes).ns);
  }
  EXPECT_NEAR(far.of(1 << 20).ns, 30'000 + (1 << 20), 1);
}

TEST(Prices, AreTheMeanOfWhatWasReportedForThatSizeAndDirection) {
  Prices prices;
  prices.declare(20);
  PriceRow& row = prices.row(TOWLINE_WHERE_SAME_HOST, TOWLINE_WRITE, false);
  for (int i = 0; i < 100; ++i) row.report(64 << 10, i % 2 == 0 ? 9'000 : 11'000);
  const Price price = row.of(64 << 10);
  EXPECT_NEAR(price.ns, 10'000, 500);
  EXPECT_NEAR(price.error_ns, 1'000, 300);
  EXPECT_EQ(price.samples, 100u);
  // The same factor serves other sizes of the class. Other classes have no samples.
  EXPECT_GT(row.of(256 << 10).ns, 2 * price.ns);
  EXPECT_FALSE(row.of(256 << 10).nearby);
  EXPECT_EQ(row.of(1 << 30).samples, 0u);
  EXPECT_TRUE(row.of(1 << 30).nearby);
  EXPECT_EQ(prices.row(TOWLINE_WHERE_SAME_HOST, TOWLINE_READ, false).of(64 << 10).samples, 0u);
  EXPECT_EQ(prices.row(TOWLINE_WHERE_ANY_HOST, TOWLINE_WRITE, false).samples(64 << 10), 0u);
  EXPECT_EQ(prices.row(TOWLINE_WHERE_SAME_HOST, TOWLINE_WRITE, true).samples(64 << 10), 0u);
}

TEST(Prices, FollowAChangeAndForgetAPause) {
  PriceRow& row = row_of("prices-change", 20);
  for (int i = 0; i < 50; ++i) row.report(4096, 1'000);
  row.report(4096, 50'000'000);  // the process was stopped
  EXPECT_LT(row.of(4096).ns, 1'300);
  for (int i = 0; i < 100; ++i) row.report(4096, 3'000);
  EXPECT_NEAR(row.of(4096).ns, 3'000, 100);
  PriceRow& first = row_of("prices-first", 20);
  first.report(4096, 50'000'000);  // a first report that is far off
  for (int i = 0; i < 150; ++i) first.report(4096, 1'000);
  EXPECT_LT(first.of(4096).ns, 1'500);
}

TEST(Prices, EverySizeHasItsClass) {
  EXPECT_EQ(PriceRow::class_of(0), 0u);
  EXPECT_EQ(PriceRow::class_of(4096), 0u);
  EXPECT_EQ(PriceRow::class_of(4097), 1u);
  EXPECT_EQ(PriceRow::class_of(32 << 10), 1u);
  EXPECT_EQ(PriceRow::class_of((32 << 10) + 1), 2u);
  EXPECT_EQ(PriceRow::class_of(UINT64_MAX), PriceRow::kClasses - 1);
  for (uint32_t size = 0; size < PriceRow::kClasses; ++size) {
    EXPECT_EQ(PriceRow::class_of(PriceRow::largest_of(size)), size);
  }
  for (uint32_t size = 0; size + 1 < PriceRow::kClasses; ++size)
    EXPECT_EQ(PriceRow::class_of(PriceRow::largest_of(size) + 1), size + 1);
}

TEST(Prices, ManyThreadsReportAtOnce) {
  PriceRow& row = row_of("prices-threads", 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&row] {
      for (int i = 0; i < 20'000; ++i) row.report(4096, 2'000);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_NEAR(row.of(4096).ns, 2'000, 10);
  EXPECT_GT(row.of(4096).samples, 1'000u);
}

}  // namespace
}  // namespace towline

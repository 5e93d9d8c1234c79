#include "telemetry/metrics.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "telemetry/snapshot.h"

namespace towline {
namespace {

const SeriesSnapshot* find(const Snapshot& snapshot, std::string_view peer,
                           Direction direction = Direction::kTx) {
  for (const SeriesSnapshot& series : snapshot.series) {
    if (series.peer == peer && series.direction == direction) return &series;
  }
  return nullptr;
}

TEST(MetricsTest, CountsAddUpOverShards) {
  Metrics metrics("prefill-0", Id{1, 2});
  Series* series = metrics.series("decode-0", "tcp", Direction::kTx);
  series->add_transfer(0, 100, 2, 1000);
  series->add_transfer(3, 50, 1, 0);
  series->add_transfer(99, 7, 1, 3000);  // counts in the shared shard
  series->add_notice(1);
  series->add_notice(kSharedShard, 4);
  series->add_served(2, 30);
  series->add_served(99, 1);
  series->add_error(2, Status::kPeerLost);
  series->add_error(2, Status::kOk);
  series->add_error(2, static_cast<Status>(INT32_MIN));

  const Snapshot snapshot = read_snapshot(metrics);
  EXPECT_EQ(snapshot.agent, "prefill-0");
  EXPECT_EQ(snapshot.incarnation, (Id{1, 2}));
  ASSERT_EQ(snapshot.series.size(), 1u);
  const SeriesSnapshot& read = snapshot.series[0];
  EXPECT_EQ(read.peer, "decode-0");
  EXPECT_EQ(read.backend, "tcp");
  EXPECT_EQ(read.bytes, 157u);
  EXPECT_EQ(read.transfers, 3u);
  EXPECT_EQ(read.blocks, 4u);
  EXPECT_EQ(read.notices, 5u);
  EXPECT_EQ(read.served_bytes, 31u);
  EXPECT_EQ(read.errors[15], 1u);
  EXPECT_EQ(read.errors[31], 1u);
  EXPECT_EQ(read.errors[0], 0u);
  EXPECT_EQ(read.measured, 2u);  // a latency of 0 is no measurement
  EXPECT_EQ(read.latency_mean_ns, 2000u);
  EXPECT_EQ(read.latency_max_ns, 3000u);
  EXPECT_NEAR(static_cast<double>(read.latency_p50_ns), 1000, 125);
  EXPECT_NEAR(static_cast<double>(read.latency_p99_ns), 3000, 375);
}

TEST(MetricsTest, TheSameNamesGiveTheSameSeries) {
  Metrics metrics("a", Id{});
  Series* tx = metrics.series("p", "tcp", Direction::kTx);
  EXPECT_EQ(metrics.series("p", "tcp", Direction::kTx), tx);
  EXPECT_NE(metrics.series("p", "tcp", Direction::kRx), tx);
  EXPECT_NE(metrics.series("p", "shm", Direction::kTx), tx);
  const std::string long_name(200, 'x');
  EXPECT_EQ(metrics.series(long_name, "tcp", Direction::kTx),
            metrics.series(long_name + "y", "tcp", Direction::kTx));
}

TEST(MetricsTest, BeyondTheBoundEverythingCountsAsOther) {
  Metrics metrics("a", Id{}, {.max_series = 4});
  metrics.series("p0", "tcp", Direction::kTx);
  metrics.series("p1", "tcp", Direction::kTx);
  Series* third = metrics.series("p2", "tcp", Direction::kTx);
  EXPECT_EQ(third, metrics.series("p3", "shm", Direction::kTx));
  EXPECT_NE(third, metrics.series("p3", "shm", Direction::kRx));
  third->add_transfer(0, 10, 1, 0);
  const Snapshot snapshot = read_snapshot(metrics);
  ASSERT_NE(find(snapshot, "other"), nullptr);
  EXPECT_EQ(find(snapshot, "other")->bytes, 10u);
  EXPECT_EQ(find(snapshot, "other", Direction::kRx), nullptr);
  EXPECT_EQ(snapshot.overflowed_series, 3u);
  EXPECT_NE(find(snapshot, "p1"), nullptr);
}

TEST(MetricsTest, ImpossibleBoundsAreRefused) {
  EXPECT_THROW(Metrics("a", Id{}, {.max_series = 2}), Error);
  EXPECT_THROW(Metrics("a", Id{}, {.max_series = counters::kMostSeries + 1}), Error);
}

TEST(MetricsTest, NobodyElseCanMapTheCountersToWriteThem) {
  Metrics metrics("a", Id{});
  EXPECT_THROW(Mapping::map_shared(metrics.fd(), 4096, MapAccess::kReadWrite), Error);
}

TEST(MetricsTest, ThreadsLoseNoCountInTheirOwnOrTheSharedShard) {
  Metrics metrics("a", Id{});
  constexpr uint32_t kThreads = 4;
  constexpr uint64_t kEach = 20000;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Series* series = metrics.series("peer", "tcp", Direction::kRx);
      for (uint64_t i = 0; i < kEach; ++i) {
        series->add_transfer(t, 1, 1, i + 1);
        series->add_transfer(kSharedShard, 1, 1, i + 1);
      }
    });
  }
  for (int i = 0; i < 50; ++i) read_snapshot(metrics);  // while they count
  for (std::thread& thread : threads) thread.join();
  const Snapshot snapshot = read_snapshot(metrics);
  ASSERT_EQ(snapshot.series.size(), 1u);
  EXPECT_EQ(snapshot.series[0].transfers, 2 * kThreads * kEach);
  EXPECT_EQ(snapshot.series[0].measured, 2 * kThreads * kEach);
  EXPECT_EQ(snapshot.series[0].latency_max_ns, kEach);
}

}  // namespace
}  // namespace towline

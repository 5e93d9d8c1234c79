#include "bench/bench.h"

#include <gtest/gtest.h>

#include "failure.h"

namespace tool::bench {
namespace {

nlohmann::json measured(double wall_s, uint64_t bytes) {
  return {{"iterations", 10},
          {"bytes", bytes},
          {"wall_s", wall_s},
          {"cpu_s", 0.5},
          {"route", "{}"},
          {"samples_s", {0.1, 0.2}},
          {"targets", nlohmann::json::array()}};
}

const nlohmann::json kChecked = {{"blocks", 4}, {"wrong", 0}};
const Row kRow{.from = "initiator", .size = 4096, .batch = 4};

TEST(Bench, ARowWithoutAProductSaysNothingOfOne) {
  const nlohmann::json row = join_row(kRow, {measured(2, 4'000'000'000)}, {kChecked});
  EXPECT_DOUBLE_EQ(row.at("bytes_per_s").get<double>(), 2e9);
  EXPECT_FALSE(row.contains("product_loss"));
}

TEST(Bench, AProductsLossIsOfItsOwnSpeedAlone) {
  nlohmann::json one = measured(2, 4'000'000'000);
  one["product"] = {{"tflops_alone", 800}, {"tflops_beside", 600}, {"bytes_per_s_alone", 3e9}};
  const nlohmann::json row = join_row(kRow, {one, one}, {kChecked, kChecked});
  EXPECT_DOUBLE_EQ(row.at("product_loss").get<double>(), 0.25);
  EXPECT_DOUBLE_EQ(row.at("bytes_per_s_alone").get<double>(), 6e9);
  EXPECT_DOUBLE_EQ(row.at("bytes_per_s").get<double>(), 4e9);
}

TEST(Bench, RowsSayWhereBytesComeFrom) {
  BenchOptions options;
  options.sizes = {4096};
  const std::vector<Row> both = rows_of(options);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].from, "initiator");
  EXPECT_EQ(both[1].from, "target");
  options.from = "storage";
  try {
    (void)rows_of(options);
    FAIL() << "taken";
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(), "--from storage: initiator, target or both");
  }
  options.storage.places = {"/data"};
  EXPECT_EQ(rows_of(options).front().from, "storage");
  options.from = "initiator";
  try {
    (void)rows_of(options);
    FAIL() << "taken";
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(), "--from initiator: memory, storage, both or mixed");
  }
  options.from = "mixed";
  EXPECT_EQ(rows_of(options).size(), 1u);
  options.from = "both";
  EXPECT_EQ(rows_of(options).back().from, "storage");
}

TEST(Bench, TheBackendIsAddedToThePluginsOfTheUser) {
  EXPECT_EQ(plugins_with("ucx", ""), "ucx");
  EXPECT_EQ(plugins_with("libfabric", "object,/tmp/mine.so"), "object,/tmp/mine.so,libfabric");
  EXPECT_EQ(plugins_with("one_of_mine", ""), "one_of_mine");
  EXPECT_EQ(plugins_with("", "object"), "object");
  EXPECT_EQ(plugins_with("", ""), "");
}

TEST(Bench, AProductThatEndedNotOnceLosesNothing) {
  nlohmann::json one = measured(2, 4'000'000'000);
  one["product"] = {{"tflops_alone", 0}, {"tflops_beside", 0}, {"bytes_per_s_alone", 3e9}};
  EXPECT_DOUBLE_EQ(join_row(kRow, {one}, {kChecked}).at("product_loss").get<double>(), 0);
}

}  // namespace
}  // namespace tool::bench

#include "telemetry/prometheus/families.h"

#include <gtest/gtest.h>

#include <string>

namespace towline::telemetry {
namespace {

const prometheus::MetricFamily& find(const std::vector<prometheus::MetricFamily>& families,
                                     const std::string& name) {
  for (const auto& family : families) {
    if (family.name == name) return family;
  }
  throw std::out_of_range(name);
}

TEST(PrometheusFamilies, SeriesBecomeLabelledCountersAndHistograms) {
  const auto families = make_families(R"([{"agent": "a", "incarnation": "00ff", "pid": 7, "series": [
      {"peer": "p \"quoted\"", "backend": "shm", "direction": "tx", "bytes": 4096, "transfers": 3, "blocks": 5,
       "errors": {"PEER_LOST": 2}, "latency_sum_ns": 3000000,
       "latency_buckets": [[1024, 1], [1280, 2], [18446744073709551615, 4]]}]}])");
  const auto& bytes = find(families, "towline_bytes_total").metric;
  ASSERT_EQ(bytes.size(), 1u);
  EXPECT_EQ(bytes[0].counter.value, 4096);
  std::map<std::string, std::string> labels;
  for (const auto& label : bytes[0].label) labels[label.name] = label.value;
  EXPECT_EQ(
      labels,
      (std::map<std::string, std::string>{
          {"agent", "a"}, {"pid", "7"}, {"peer", "p \"quoted\""}, {"backend", "shm"}, {"direction", "tx"}}));
  EXPECT_EQ(find(families, "towline_errors_total").metric.at(0).counter.value, 2);
  const auto& histogram = find(families, "towline_transfer_latency_seconds").metric.at(0).histogram;
  EXPECT_EQ(histogram.sample_count, 7u);
  EXPECT_DOUBLE_EQ(histogram.sample_sum, 0.003);
  EXPECT_EQ(histogram.bucket.front().cumulative_count, 1u);  // up to 1024 ns
  EXPECT_EQ(histogram.bucket.at(1).cumulative_count, 3u);    // 1280 lies below 2048
  EXPECT_EQ(histogram.bucket.at(histogram.bucket.size() - 2).cumulative_count, 3u);
  EXPECT_EQ(histogram.bucket.back().cumulative_count, 7u);
}

TEST(PrometheusFamilies, AgentsOfOneNameInOneProcessAreAddedUp) {
  const std::string agent =
      R"({"agent": "a", "pid": 7, "series": [{"peer": "p", "backend": "b", "direction": "tx", "bytes": 1}]})";
  const auto families = make_families("[" + agent + "," + agent + "]");
  const auto& bytes = find(families, "towline_bytes_total").metric;
  ASSERT_EQ(bytes.size(), 1u);
  EXPECT_EQ(bytes[0].counter.value, 2);
}

TEST(PrometheusFamilies, ApplicationsAddFamiliesOfTheirOwn) {
  const auto families = make_families(R"([{"agent": "a", "pid": 7, "series": []},
      {"families": [{"name": "hits_total", "help": "h", "type": "counter",
                     "metrics": [{"labels": {"rank": "1"}, "value": 5}, {"value": "no"}, 7]},
                    {"name": "took_us", "type": "histogram", "metrics": [
                        {"bounds": [10, 20], "counts": [1, 2, 3], "sum": 99},
                        {"bounds": [10], "counts": [1], "sum": 1}]},
                    {"name": "", "type": "gauge", "metrics": []}, {"name": "x", "type": "?", "metrics": []}]},
      {"families": [{"name": "hits_total", "type": "counter", "metrics": [{"labels": {"rank": "2"}, "value": 6}]},
                    {"name": "hits_total", "type": "gauge", "metrics": [{"value": 1}]}]},
      {"families": 5}])");
  const auto& hits = find(families, "hits_total").metric;
  ASSERT_EQ(hits.size(), 2u);
  EXPECT_EQ(hits[0].counter.value, 5);
  EXPECT_EQ(hits[0].label.at(0).value, "1");
  EXPECT_EQ(hits[1].counter.value, 6);
  const auto& took = find(families, "took_us").metric;
  ASSERT_EQ(took.size(), 1u);
  EXPECT_EQ(took[0].histogram.bucket.at(1).cumulative_count, 3u);
  EXPECT_EQ(took[0].histogram.sample_count, 6u);
  EXPECT_EQ(took[0].histogram.sample_sum, 99);
  EXPECT_EQ(find(families, "towline_agent_info").metric.size(), 1u);
  EXPECT_THROW((void)find(families, "x"), std::out_of_range);
}

TEST(PrometheusFamilies, WhatMakesNoSenseIsLeftOut) {
  for (const char* text :
       {"", "{", "5", "[5, {\"series\": 5}, {\"series\": [5, {\"errors\": 5, \"latency_buckets\": [5]}]}]"}) {
    for (const auto& family : make_families(text)) EXPECT_LE(family.metric.size(), 2u);
  }
}

}  // namespace
}  // namespace towline::telemetry

#include "bench/collective.h"

#include <gtest/gtest.h>

#include "failure.h"
#include "options.h"

namespace tool::bench {
namespace {

TEST(Collectives, AreTakenByNameOrAll) {
  EXPECT_EQ(parse_collectives("all_reduce,barrier"), (std::vector<std::string>{"all_reduce", "barrier"}));
  EXPECT_EQ(parse_collectives("all").size(), 13U);
  EXPECT_THROW((void)parse_collectives("all_reduce,"), Failure);
  EXPECT_THROW((void)parse_collectives("ponder"), Failure);
}

TEST(Collectives, MemoryOfGpusIsMeasuredBesideNccl) {
  CollectiveOptions options;
  choose_memory(options, "shared");
  EXPECT_FALSE(options.vram);
  choose_memory(options, "vram");
  EXPECT_TRUE(options.vram);
  EXPECT_EQ(options.peers, std::vector<std::string>{"nccl"});
  options.nccl_from = "measured";
  choose_memory(options, "vram");
  options.peers.clear();
  EXPECT_THROW(choose_memory(options, "shared"), Failure) << "of GPUs only";
  options.nccl_from.clear();
  options.peers = {"nccl"};
  EXPECT_THROW(choose_memory(options, "shared"), Failure);
  EXPECT_THROW(choose_memory(options, "private"), Failure);
  options.peers = {"gloo"};
  EXPECT_THROW(choose_memory(options, "vram"), Failure);
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

TEST(Collectives, WhatMemoryDoesNotSufficeForIsNotBegun) {
  CollectiveOptions options;
  options.operations = {"all_reduce"};
  options.sizes = {4, 1 << 20};
  options.ranks = {2, 8};
  EXPECT_EQ(buffer_bytes(options), uint64_t{8 * 3 * 2} << 20);  // gloo's and Open MPI's among them
  options.peers.clear();
  EXPECT_EQ(buffer_bytes(options), uint64_t{8 * 2} << 20);
  options.sizes = {uint64_t{1} << 60};
  EXPECT_EQ(buffer_bytes(options), UINT64_MAX) << "16 of them are 2^64 bytes";
  options.sizes = {uint64_t{1} << 50};
  try {
    run_collective_bench(options, {});
    FAIL() << "a petabyte was found";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("fewer ranks"), std::string::npos) << failure.what();
  }
}

}  // namespace
}  // namespace tool::bench

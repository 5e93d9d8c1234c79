#include "base/os/placement.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "base/error.h"
#include "base/os/topology.h"
#include "support/fake_sysfs.h"

namespace towline {
namespace {

using Cpus = std::vector<uint32_t>;

// Two nodes. The first has the processor that this thread may run on first, the second the others.
class Placement : public ::testing::Test {
 protected:
  void SetUp() override {
    const Cpus mine = read_host_topology().allowed_cpus;
    if (mine.size() < 2) GTEST_SKIP() << "one processor";
    first_ = {mine[0]};
    second_ = {mine.begin() + 1, mine.end()};
    add_node(0, first_);
    add_node(1, second_);
  }
  void add_node(uint32_t id, const Cpus& cpus) {
    std::string list;
    for (const uint32_t cpu : cpus) list += (list.empty() ? "" : ",") + std::to_string(cpu);
    support::FakeSysfs::write(
        sysfs_.root() / "sys/devices/system/node" / ("node" + std::to_string(id)) / "cpulist", list);
  }
  std::vector<WorkerPlace> places(const std::string& setting, uint32_t workers) {
    return place_workers(setting, workers, sysfs_.root());
  }
  std::string refusal(const std::string& setting) {
    try {
      (void)places(setting, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kInvalidArgument);
      return error.what();
    }
    return "not refused";
  }

  support::FakeSysfs sysfs_;
  Cpus first_;
  Cpus second_;
};

TEST_F(Placement, WorkersGoToTheNodesOfDevicesInTurnThoseWithMostFirst) {
  sysfs_.add_gpu("pci0000:80/0000:80:01.0/0000:81:00.0", 1);
  sysfs_.add_network("eth0", "pci0000:80/0000:80:01.0/0000:82:00.0", 1);
  sysfs_.add_network("eth1", "pci0000:10/0000:10:01.0/0000:11:00.0", 0);
  sysfs_.add_network("eth2", "pci0000:10/0000:10:01.0/0000:12:00.0", 0, false);  // down
  sysfs_.add_virtual_network("lo");
  const auto given = places("auto", 3);
  EXPECT_EQ(given[0].node, 1u) << given[0].why;
  EXPECT_EQ(given[0].cpus, second_);
  EXPECT_EQ(given[0].why, "node 1 (2 devices)");
  EXPECT_EQ(given[1].node, 0u);
  EXPECT_EQ(given[1].cpus, first_);
  EXPECT_EQ(given[2].node, 1u);
}

TEST_F(Placement, NobodyIsBoundWithoutDevicesOrWithOneNodeOrUnasked) {
  EXPECT_TRUE(places("auto", 1)[0].cpus.empty());
  EXPECT_NE(places("auto", 1)[0].why.find("no device"), std::string::npos);
  EXPECT_TRUE(places("any", 1)[0].cpus.empty());
  const support::FakeSysfs bare;
  const auto given = place_workers("auto", 2, bare.root());
  EXPECT_TRUE(given[1].cpus.empty());
  EXPECT_FALSE(given[1].node);
  EXPECT_NE(given[1].why.find("one NUMA node"), std::string::npos) << given[1].why;
}

TEST_F(Placement, NodesAndProcessorsMayBeNamed) {
  const auto nodes = places("node:1,0", 3);
  EXPECT_EQ(nodes[0].cpus, second_);
  EXPECT_EQ(nodes[1].cpus, first_);
  EXPECT_EQ(nodes[2].node, 1u);
  const std::string one = std::to_string(first_[0]);
  const std::string other = std::to_string(second_[0]);
  const auto cpus = places("cpus:" + one + "/" + other + "," + one, 2);
  EXPECT_EQ(cpus[0].cpus, first_);
  EXPECT_EQ(cpus[0].node, 0u);
  EXPECT_EQ(cpus[1].cpus, (Cpus{first_[0], second_[0]}));
  EXPECT_FALSE(cpus[1].node) << "of two nodes";
}

TEST_F(Placement, WhatIsWrongIsNamed) {
  EXPECT_NE(refusal("node:7").find("there is no node 7, only 0,1"), std::string::npos) << refusal("node:7");
  EXPECT_NE(refusal("node:").find("numbers of NUMA nodes"), std::string::npos);
  EXPECT_NE(refusal("cpus:9999").find("may run on"), std::string::npos) << refusal("cpus:9999");
  EXPECT_NE(refusal("cpus:x").find("expected lists"), std::string::npos);
  EXPECT_NE(refusal("near").find("tuning.workers.place = \"near\": expected any, auto"), std::string::npos);
}

TEST_F(Placement, AThreadRunsWhereItIsPut) {
  std::thread([&] {
    EXPECT_EQ(run_on(second_), 0);
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    EXPECT_FALSE(CPU_ISSET(first_[0], &set));
    EXPECT_TRUE(CPU_ISSET(second_[0], &set));
    EXPECT_NE(run_on(std::vector<uint32_t>{100000}), 0);
  }).join();
}

}  // namespace
}  // namespace towline

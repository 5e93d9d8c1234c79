// A host's devices, read from a folder that is laid out like /sys.
#include "base/os/pci.h"

#include <gtest/gtest.h>

#include "support/fake_sysfs.h"

namespace towline {
namespace {

TEST(Pci, ADistanceCountsTheStepsThroughTheCommonBridge) {
  support::FakeSysfs sysfs;
  sysfs.add_gpu("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0", 0);
  sysfs.add_network("eth0", "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", 0);
  sysfs.add_network("eth1", "pci0000:20/0000:20:01.0/0000:21:00.0", 0);
  sysfs.add_network("eth2", "pci0000:80/0000:80:01.0/0000:81:00.0", 1, false);
  sysfs.add_virtual_network("lo");
  const std::vector<PciPlace> gpus = read_gpus(sysfs.root());
  ASSERT_EQ(gpus.size(), 1u);
  EXPECT_EQ(gpus[0].address(), "0000:13:00.0");
  EXPECT_EQ(gpus[0].numa_node, 0);
  const std::vector<NetworkInterface> nics = read_network_interfaces(sysfs.root());
  ASSERT_EQ(nics.size(), 4u);
  EXPECT_EQ(nics[0].name, "eth0");
  EXPECT_TRUE(nics[0].up);
  EXPECT_FALSE(nics[2].up);
  EXPECT_EQ(pci_distance(gpus[0], nics[0].place), 4u);
  EXPECT_EQ(pci_distance(gpus[0], nics[1].place), 1006u);
  EXPECT_EQ(pci_distance(gpus[0], nics[2].place), 2006u) << "the other processor's";
  EXPECT_EQ(pci_distance(gpus[0], nics[3].place), UINT32_MAX) << "no device";
  EXPECT_EQ(pci_distance(gpus[0], gpus[0]), 0u);
}

TEST(Pci, WhatIsMissingIsLeftOut) {
  EXPECT_TRUE(read_gpus("/nowhere").empty());
  EXPECT_TRUE(read_network_interfaces("/nowhere").empty());
  EXPECT_TRUE(read_pci_place("/nowhere").path.empty());
}

}  // namespace
}  // namespace towline

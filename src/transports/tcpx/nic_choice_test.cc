#include "transports/tcpx/nic_choice.h"

#include <gtest/gtest.h>

#include "support/fake_sysfs.h"

namespace towline::tcpx {
namespace {

// Two processors; below each a switch with two GPUs and two NICs, and a NIC beside the switch.
class NicChoiceTest : public ::testing::Test {
 protected:
  NicChoiceTest() {
    for (int node = 0; node < 2; ++node) {
      const std::string bus = node == 0 ? "1" : "8";
      const std::string root = "pci0000:" + bus + "0/0000:" + bus + "0:01.0";
      const std::string bridge = root + "/0000:" + bus + "1:00.0/0000:" + bus + "2:";
      sysfs.add_gpu(bridge + "00.0/0000:" + bus + "3:00.0", node);
      sysfs.add_gpu(bridge + "01.0/0000:" + bus + "4:00.0", node);
      sysfs.add_network("near" + bus + "a", bridge + "02.0/0000:" + bus + "5:00.0", node);
      sysfs.add_network("near" + bus + "b", bridge + "03.0/0000:" + bus + "6:00.0", node);
      sysfs.add_network("far" + bus, "pci0000:" + bus + "9/0000:" + bus + "9:01.0/0000:" + bus + "a:00.0",
                        node);
    }
    sysfs.add_network("down1", "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:04.0/0000:17:00.0", 0, false);
    sysfs.add_virtual_network("lo");
  }
  NicChoice choose(const std::vector<std::string>& wanted, const std::string& gpu) {
    return choose_nic(wanted, gpu, sysfs.root());
  }

  support::FakeSysfs sysfs;
};

TEST_F(NicChoiceTest, EachGpuGetsANicBelowItsSwitchAndNeighboursTakeTurns) {
  EXPECT_EQ(choose({"auto"}, "0000:13:00.0").interface, "near1a");
  EXPECT_EQ(choose({"auto"}, "0000:14:00.0").interface, "near1b");
  EXPECT_EQ(choose({"auto"}, "0000:83:00.0").interface, "near8a");
  EXPECT_EQ(choose({"auto"}, "0000:84:00.0").interface, "near8b");
  const std::string why = choose({"auto"}, "0000:84:00.0").why;
  EXPECT_NE(why.find("4 steps away on PCI from GPU 0000:84:00.0"), std::string::npos) << why;
}

TEST_F(NicChoiceTest, OfThoseThatAreNamedTheNearestIsTaken) {
  EXPECT_EQ(choose({"far1", "near8b", "far8"}, "0000:83:00.0").interface, "near8b");
  EXPECT_EQ(choose({"far8", "far1"}, "0000:14:00.0").interface, "far1") << "of the GPU's own processor";
  EXPECT_EQ(choose({"near1a", "nowhere"}, "0000:83:00.0").interface, "near1a");
}

// A wrong pair works, but slowly: what was asked for is done, and said.
TEST_F(NicChoiceTest, ANameIsTakenAndABetterOneIsSaid) {
  const NicChoice choice = choose({"far8"}, "0000:13:00.0");
  EXPECT_EQ(choice.interface, "far8");
  EXPECT_NE(choice.why.find("on another NUMA node from GPU 0000:13:00.0"), std::string::npos) << choice.why;
  EXPECT_NE(choice.why.find("near1a is nearer"), std::string::npos) << choice.why;
  EXPECT_EQ(choose({"near1a"}, "0000:13:00.0").why.find("nearer"), std::string::npos);
  EXPECT_EQ(choose({"lo"}, "").interface, "lo") << "nothing is known, nothing is refused";
}

TEST_F(NicChoiceTest, WithoutAnAnswerThereIsAReason) {
  EXPECT_EQ(choose({}, "").interface, "");
  const auto why = [&](const std::vector<std::string>& wanted, const std::string& gpu) {
    const NicChoice choice = choose(wanted, gpu);
    EXPECT_EQ(choice.interface, "");
    return choice.why;
  };
  EXPECT_NE(why({"auto"}, "").find("4 GPUs: name one in tuning.tcpx.gpu"), std::string::npos);
  EXPECT_NE(why({"auto"}, "0000:99:00.0").find("no GPU at 0000:99:00.0"), std::string::npos);
  EXPECT_NE(why({"nowhere", "elsewhere"}, "0000:13:00.0").find("nowhere, elsewhere"), std::string::npos);
  EXPECT_EQ(choose({"auto"}, "").interface, "");
}

TEST_F(NicChoiceTest, AHostWithOneGpuNeedNotNameIt) {
  support::FakeSysfs one;
  one.add_gpu("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0", 0);
  one.add_network("eth0", "pci0000:20/0000:20:01.0/0000:21:00.0", 0);
  one.add_network("eth1", "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", 0);
  EXPECT_EQ(choose_nic({"auto"}, "", one.root()).interface, "eth1");
}

TEST(PciAddresses, AreReadAsTheKernelAndNvidiaSmiWriteThem) {
  EXPECT_EQ(pci_address("0000:04:00.0"), "0000:04:00.0");
  EXPECT_EQ(pci_address("00000000:AF:00.0"), "0000:af:00.0");
  EXPECT_EQ(pci_address("04:00.0"), "");
  EXPECT_EQ(pci_address("0000:04:00:0"), "");
  EXPECT_EQ(pci_address("zzzz:04:00.0"), "");
}

}  // namespace
}  // namespace towline::tcpx

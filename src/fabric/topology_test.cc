// A host's devices, read from a folder that is laid out like /sys.
#include "fabric/topology.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/fake_sysfs.h"

namespace towline::fabric {
namespace {

namespace fs = std::filesystem;

class Topology : public ::testing::Test {
 protected:
  void add_nic(const std::string& name, const std::string& path, int node, const std::string& state,
               const std::string& driver = "mlx5_core") {
    const fs::path device = sysfs_.add_pci(path, node, "0x15b3", "0x020700");
    fs::create_directories(root_ / "sys/drivers" / driver);
    fs::create_symlink(root_ / "sys/drivers" / driver, device / "driver");
    const fs::path nic = device / "infiniband" / name;
    support::FakeSysfs::write(nic / "ports/1/state", state);
    support::FakeSysfs::write(nic / "ports/1/rate", "400 Gb/sec (4X NDR)");
    fs::create_symlink(device, nic / "device");
    fs::create_symlink(nic, root_ / "sys/class/infiniband" / name);
  }
  // Two sockets; below each a switch with a GPU and a NIC, and a NIC at a root port of its own.
  void add_host() {
    for (int node = 0; node < 2; ++node) {
      const std::string bus = node == 0 ? "pci0000:10/0000:10:01.0" : "pci0000:80/0000:80:01.0";
      const std::string low = node == 0 ? "1" : "8";
      sysfs_.add_gpu(bus + "/0000:" + low + "1:00.0/0000:" + low + "2:00.0/0000:" + low + "3:00.0", node);
      add_nic("mlx5_" + std::to_string(2 * node),
              bus + "/0000:" + low + "1:00.0/0000:" + low + "2:01.0/0000:" + low + "4:00.0", node,
              "4: ACTIVE");
      add_nic("mlx5_" + std::to_string(2 * node + 1),
              (node == 0 ? "pci0000:20/0000:20:01.0/0000:21:00.0" : "pci0000:90/0000:90:01.0/0000:91:00.0"),
              node, "4: ACTIVE");
    }
  }
  [[nodiscard]] std::vector<PciPlace> places() const {
    std::vector<PciPlace> all;
    for (const RdmaPort& port : read_rdma_ports(root_)) all.push_back(port.place);
    return all;
  }

  support::FakeSysfs sysfs_;
  const fs::path& root_ = sysfs_.root();
};

TEST_F(Topology, IsDescribedWithTheRailsThatServeEachGpuAndNode) {
  add_host();
  add_nic("mlx5_9", "pci0000:a0/0000:a0:01.0/0000:a1:00.0", 1, "1: DOWN");
  const auto told = nlohmann::json::parse(describe_topology(root_));
  ASSERT_EQ(told["gpus"].size(), 2u);
  EXPECT_EQ(told["gpus"][0]["address"], "0000:13:00.0");
  EXPECT_EQ(told["gpus"][0]["near"], nlohmann::json::array({"verbs:mlx5_0/1"}));
  EXPECT_EQ(told["gpus"][1]["near"], nlohmann::json::array({"verbs:mlx5_2/1"}));
  ASSERT_EQ(told["numa_nodes"].size(), 2u);
  EXPECT_EQ(told["numa_nodes"][1]["near"], nlohmann::json::array({"verbs:mlx5_2/1", "verbs:mlx5_3/1"}));
  ASSERT_EQ(told["ports"].size(), 5u);
  EXPECT_EQ(told["ports"][4]["device"], "mlx5_9");
  EXPECT_EQ(told["ports"][4]["chosen"], false);
  EXPECT_EQ(told["ports"][3]["chosen"], true);
  EXPECT_EQ(told["ports"][3]["rate"], "400 Gb/sec (4X NDR)");
}

TEST_F(Topology, OfAHostWithoutDevicesSaysWhy) {
  const auto told = nlohmann::json::parse(describe_topology(root_));
  EXPECT_TRUE(told["gpus"].empty() && told["ports"].empty() && told["numa_nodes"].empty());
  EXPECT_NE(told["choice"].get<std::string>().find("this host has no"), std::string::npos) << told;
}

TEST_F(Topology, EachGpuGetsTheNicBelowItsSwitch) {
  add_host();
  const std::vector<PciPlace> gpus = read_gpus(root_);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].address(), "0000:13:00.0");
  EXPECT_EQ(gpus[1].numa_node, 1);
  const std::vector<PciPlace> rails = places();
  ASSERT_EQ(rails.size(), 4u);
  EXPECT_EQ(nearest_rails(rails, gpus[0]), 1u << 0);
  EXPECT_EQ(nearest_rails(rails, gpus[1]), 1u << 2);
  EXPECT_EQ(pci_distance(gpus[0], rails[0]), 4u);
  EXPECT_LT(pci_distance(gpus[0], rails[1]), pci_distance(gpus[0], rails[3]))
      << "the other socket is farther";
  // Without the near one, whatever is on the same socket.
  const std::vector<PciPlace> far = {rails[1], rails[2], rails[3]};
  EXPECT_EQ(nearest_rails(far, gpus[0]), 1u << 0);
}

TEST_F(Topology, HostMemoryGetsTheRailsOfItsNode) {
  add_host();
  EXPECT_EQ(numa_node_of_device("mlx5_1", root_), 0);
  EXPECT_EQ(numa_node_of_device("mlx5_2", root_), 1);
  EXPECT_EQ(numa_node_of_device("mlx5_7", root_), -1);
  EXPECT_EQ(rails_of_node(places(), 0), 3u);
  EXPECT_EQ(rails_of_node(places(), 1), 12u);
  EXPECT_EQ(rails_of_node(places(), -1), UINT32_MAX) << "unknown: all";
  EXPECT_EQ(rails_of_node({}, 0), UINT32_MAX);
  EXPECT_EQ(nearest_rails(std::vector<PciPlace>(2), PciPlace{}), UINT32_MAX);
  const int value = 1;
  EXPECT_GE(numa_node_of(&value), -1);
}

TEST_F(Topology, RailsAreActivePortsOfRealDevicesAndTheReasonSaysWhatIsNot) {
  EXPECT_EQ(choose_rails(read_rdma_ports(root_)).reason, "this host has no RDMA device");
  const fs::path soft = root_ / "sys/devices/virtual/infiniband/rxe0";
  support::FakeSysfs::write(soft / "ports/1/state", "4: ACTIVE");
  fs::create_symlink(soft, root_ / "sys/class/infiniband/rxe0");
  RailChoice choice = choose_rails(read_rdma_ports(root_));
  EXPECT_TRUE(choice.rails.empty());
  EXPECT_EQ(choice.reason,
            "this host has no usable RDMA port: rxe0/1 is software (name it in tuning.rdma.rails)");
  add_nic("mlx5_0", "pci0000:10/0000:10:01.0/0000:11:00.0", 0, "4: ACTIVE");
  add_nic("mlx5_1", "pci0000:20/0000:20:01.0/0000:21:00.0", 1, "1: DOWN");
  add_nic("rdmap0s6", "pci0000:30/0000:30:06.0", 0, "4: ACTIVE", "efa");
  choice = choose_rails(read_rdma_ports(root_));
  EXPECT_EQ(choice.rails, (std::vector<std::string>{"verbs:mlx5_0/1", "ofi:efa/rdmap0s6-rdm"}));
  EXPECT_NE(choice.reason.find("mlx5_1/1 is DOWN"), std::string::npos) << choice.reason;
}

}  // namespace
}  // namespace towline::fabric

// Memory that a NIC uses all the time comes from its NUMA node: over a fake sysfs, a model of libibverbs, and the kernel's word
// on where the pages of registered memory are to come from.
#ifdef TOWLINE_HAVE_IBVERBS

#include <gtest/gtest.h>
#include <linux/mempolicy.h>

#include "fabric/buffer_pool.h"
#include "fabric/test_support.h"
#include "fabric/verbs/fake_library.h"
#include "fabric/verbs/verbs_domain.h"
#include "support/fake_sysfs.h"

namespace towline::fabric {
namespace {

namespace fs = std::filesystem;
using testing::FakeDevice;
using testing::FakeVerbs;
using testing::TestHost;

class NearMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    const unsigned long first = 1;
    if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, &first, 64UL) != 0)
      GTEST_SKIP() << "no memory policies here";
    ASSERT_EQ(syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0UL), 0);
  }
  // A NIC on that node; -1: the kernel does not say.
  std::vector<std::unique_ptr<Domain>> rail(const std::string& name, int node) {
    FakeDevice& device = world_.add_device(name);
    devices_.push_back(&device);
    const std::string bus = "pci0000:10/0000:10:0" + std::to_string(devices_.size()) + ".0";
    const fs::path nic = sysfs_.add_pci(bus, node, "0x15b3", "0x020700") / "infiniband" / name;
    fs::create_directories(nic);
    fs::create_symlink(nic.parent_path().parent_path(), nic / "device");
    std::snprintf(device.ibdev_path, sizeof device.ibdev_path, "%s", nic.c_str());
    std::vector<std::unique_ptr<Domain>> rails;
    rails.push_back(std::make_unique<VerbsDomain>(FakeVerbs::library(), VerbsOptions{name, 1, -1}));
    return rails;
  }
  static std::size_t preferred(const FakeDevice& device) {
    return static_cast<std::size_t>(
        std::count(device.policies.begin(), device.policies.end(), MPOL_PREFERRED));
  }

  support::FakeSysfs sysfs_;
  FakeVerbs world_;
  std::vector<FakeDevice*> devices_;
};

TEST_F(NearMemory, TheBuffersOfAConnectionComeFromTheNodeOfItsNic) {
  uint64_t now_ns = 1;
  TestHost hosts[2];
  for (int i = 0; i < 2; ++i) {
    hosts[i].now_ns = &now_ns;
    hosts[i].engine =
        std::make_unique<Engine>(EngineOptions{}, rail("mlx5_" + std::to_string(i), -i), hosts[i]);
    EXPECT_EQ(hosts[i].engine->traits(0).numa_node, -i);
  }
  hosts[0].peers[0] = hosts[0].engine->add_peer(hosts[1].engine->address());
  hosts[1].peers[0] = hosts[1].engine->add_peer(hosts[0].engine->address());
  const std::size_t before = devices_[0]->policies.size();
  TransferRequest request;
  request.peer = hosts[0].peers[0];
  request.immediate = request.count = 1;
  ASSERT_EQ(hosts[0].engine->submit(request), Status::kInProgress);
  while (hosts[1].counts[1] == 0 && now_ns < kSecondNs) {
    now_ns += 10'000;
    for (int i = 0; i < 2; ++i) {
      hosts[i].engine->progress(now_ns);
      for (; !hosts[i].letters.empty(); hosts[i].letters.pop_front())
        hosts[1 - i].engine->on_control(hosts[1 - i].peers[0], hosts[i].letters.front().bytes);
    }
  }
  EXPECT_EQ(hosts[1].counts[1], 1u);
  EXPECT_GT(devices_[0]->policies.size(), before);
  EXPECT_EQ(preferred(*devices_[0]), devices_[0]->policies.size() - before);
  EXPECT_EQ(preferred(*devices_[1]), 0u) << "its node is not known";
}

TEST_F(NearMemory, ThePagesOfAPoolComeFromTheNodeOfTheRails) {
  for (const int node : {0, -1}) {
    TransferEngine engine{rail("mlx5_" + std::to_string(2 + node), node), {}};
    EXPECT_EQ(engine.node().has_value(), node == 0);
    FakeDevice& device = *devices_.back();
    const std::size_t before = device.policies.size();
    const BufferPool pool{engine, {.buffer_bytes = 4096, .buffers = 8}};
    ASSERT_EQ(device.policies.size(), before + 1);
    EXPECT_EQ(device.policies.back(), node == 0 ? MPOL_PREFERRED : MPOL_DEFAULT);
  }
}

}  // namespace
}  // namespace towline::fabric

#endif

// GPU memory that is sent as it lies: what is bound when, and one socket's sends from it. GPUs are made of host memory.
#include "transports/tcpx/bound_memory.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <map>

#include "base/clock.h"
#include "transports/tcpx/bound_sender.h"
#include "transports/tcpx/flow_lane.h"
#include "transports/tcpx/kernel/fake_kernel.h"
#include "transports/tcpx/sources/copy.h"
#include "transports/tcpx/sources/fake_gpu_host.h"
#include "transports/tcpx/sources/test_support.h"

namespace towline::tcpx {
namespace {

using testing::FakeGpuHost;
using testing::FakeKernel;

class BoundMemoryTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 1u << 20;

  [[nodiscard]] towline_region_ref part(uint64_t offset, uint64_t bytes) const {
    towline_region_ref region = {};
    region.kind = TOWLINE_MEMORY_VRAM;
    region.device = FakeGpuHost::kDevice;
    region.address = reinterpret_cast<uint64_t>(gpu_memory.data()) + offset;
    region.bytes = bytes;
    return region;
  }
  [[nodiscard]] static std::string why_not(BoundMemory& memory, const towline_region_ref& region) {
    EXPECT_EQ(memory.add(region), nullptr);
    return memory.why_not();
  }

  FakeKernel kernel;
  FakeGpuHost gpu;
  const plugin::Host host = gpu.host();
  std::vector<uint8_t> gpu_memory = testing::pattern(kBytes);
};

TEST_F(BoundMemoryTest, ARegionIsBoundForAsLongAsItIsRegistered) {
  BoundMemory memory(kernel, host, SendWay::kAuto, "nic0");
  BoundMemory::Bound* const bound = memory.add(part(0, kBytes));
  ASSERT_NE(bound, nullptr) << memory.why_not();
  EXPECT_EQ(kernel.bindings, std::set<uint32_t>{bound->range.number});
  EXPECT_EQ(bound->range.at, FakeGpuHost::kExportOffset);
  memory.remove(bound);
  EXPECT_TRUE(kernel.bindings.empty());
}

TEST_F(BoundMemoryTest, TensorsOfAnArenaShareItsBindingUntilTheLastIsGone) {
  BoundMemory memory(kernel, host, SendWay::kAuto, "nic0");
  BoundMemory::Bound* const arena = memory.add(part(0, kBytes));
  BoundMemory::Bound* const tensor = memory.add(part(8192, 4096));
  EXPECT_EQ(tensor, arena);
  EXPECT_EQ(gpu.exports, 1);
  memory.remove(arena);
  EXPECT_EQ(kernel.bindings.size(), 1u);
  memory.remove(tensor);
  EXPECT_TRUE(kernel.bindings.empty());
}

TEST_F(BoundMemoryTest, EveryReasonIsSaid) {
  BoundMemory nowhere(kernel, host, SendWay::kAuto, "");
  EXPECT_EQ(why_not(nowhere, part(0, kBytes)),
            "tuning.tcpx.interface gives no NIC that sends from the memory of GPUs");
  BoundMemory gathers(kernel, host, SendWay::kGather, "nic0");
  EXPECT_EQ(why_not(gathers, part(0, kBytes)), "tuning.tcpx.send is gather");
  BoundMemory gone(kernel, host, SendWay::kAuto, "nic9");
  EXPECT_NE(why_not(gone, part(0, kBytes)).find("no network interface \"nic9\""), std::string::npos);
  BoundMemory memory(kernel, host, SendWay::kAuto, "nic0");
  gpu.fails = "the driver exports nothing";
  EXPECT_EQ(why_not(memory, part(0, kBytes)), "the driver exports nothing");
  gpu.fails.clear();
  EXPECT_NE(memory.add(part(0, kBytes)), nullptr) << "another region may be exported";
}

// A NIC that can't is asked once, not for each tensor.
TEST_F(BoundMemoryTest, AKernelOrNicThatCantIsAskedOnce) {
  kernel.sends_from_memory = false;
  BoundMemory memory(kernel, host, SendWay::kAuto, "nic0");
  EXPECT_NE(why_not(memory, part(0, 4096)).find("binding memory to send from by nic0"), std::string::npos);
  kernel.sends_from_memory = true;
  EXPECT_EQ(memory.add(part(0, 4096)), nullptr);
  EXPECT_EQ(gpu.exports, 1);
}

TEST_F(BoundMemoryTest, BindingsAreBounded) {
  BoundMemory memory(kernel, host, SendWay::kAuto, "nic0");
  const uint64_t bytes = kBytes / (BoundMemory::kMost + 1) / 8 * 8;
  for (std::size_t i = 0; i < BoundMemory::kMost; ++i) ASSERT_NE(memory.add(part(i * bytes, bytes)), nullptr);
  EXPECT_NE(
      why_not(memory, part(BoundMemory::kMost * bytes, bytes)).find("register an arena before its parts"),
      std::string::npos);
}

// ---- one socket

class BoundSenderTest : public BoundMemoryTest {
 protected:
  [[nodiscard]] towline_landing_piece piece(uint64_t offset, uint64_t bytes) const {
    return {reinterpret_cast<uint64_t>(gpu_memory.data()) + offset, bytes};
  }
  [[nodiscard]] bool takes(BoundSender& sender, const towline_landing_piece& one, uint64_t device = 1) const {
    return sender.takes(sockets.first.get(), device, {&one, 1});
  }

  std::pair<UniqueFd, UniqueFd> sockets = testing::connected_sockets();
};

TEST_F(BoundSenderTest, PiecesArriveAsTheyLieAndAreReturnedWhenThePeerHasThem) {
  BoundMemory memory(kernel, host, SendWay::kEmulated, "");
  BoundMemory::Bound* const bound = memory.add(part(0, kBytes));
  ASSERT_NE(bound, nullptr) << memory.why_not();
  BoundSender sender(&memory);
  const auto one = piece(100, 5000);
  const auto other = piece(70'000, 3);
  ASSERT_TRUE(takes(sender, one));
  ASSERT_TRUE(takes(sender, other));
  const iovec pieces[] = {{reinterpret_cast<void*>(one.address), one.bytes},
                          {reinterpret_cast<void*>(other.address), other.bytes}};
  ASSERT_EQ(sender.write(sockets.first.get(), pieces).bytes, 5003u);
  EXPECT_EQ(sender.lent(), 1u);
  std::vector<uint8_t> got(5003);
  ASSERT_EQ(::recv(sockets.second.get(), got.data(), got.size(), MSG_WAITALL), 5003);
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 5000, gpu_memory.begin() + 100));
  EXPECT_TRUE(std::equal(got.begin() + 5000, got.end(), gpu_memory.begin() + 70'000));
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 20 * kSecondNs);
  while (sender.returned(sockets.first.get()) != 1 && !deadline.passed(monotonic_now_ns())) {
    pollfd wait = {sockets.first.get(), 0, 0};
    (void)::poll(&wait, 1, 100);
  }
  EXPECT_TRUE(sender.all_returned());
}

TEST_F(BoundSenderTest, MemoryThatIsNotBoundWhollyOrLiesOnAnotherGpuIsGathered) {
  BoundMemory memory(kernel, host, SendWay::kEmulated, "");
  BoundSender sender(&memory);
  EXPECT_FALSE(takes(sender, piece(0, 4096)));
  BoundMemory::Bound* const bound = memory.add(part(4096, 8192));
  EXPECT_TRUE(takes(sender, piece(4096, 8192)));
  EXPECT_FALSE(takes(sender, piece(4096, 8193)));
  EXPECT_FALSE(takes(sender, piece(4095, 2)));
  EXPECT_FALSE(takes(sender, piece(4096, 4096), 2));
  memory.remove(bound);
  EXPECT_FALSE(takes(sender, piece(4096, 4096)));
}

// The real kernel knows nothing of the binding that the fake one gave.
TEST_F(BoundSenderTest, ASocketThatTheKernelRefusesGathersAndTheReasonIsSaid) {
  BoundMemory memory(kernel, host, SendWay::kAuto, "nic0");
  ASSERT_NE(memory.add(part(0, kBytes)), nullptr);
  EXPECT_EQ(memory.why_not(), "");
  BoundSender sender(&memory);
  EXPECT_FALSE(takes(sender, piece(0, 4096)));
  EXPECT_NE(memory.why_not().find("sending from bound memory: "), std::string::npos) << memory.why_not();
  EXPECT_TRUE(sender.all_returned());
}

// ---- a lane

// A worker that sleeps learns of the kernel's report, whatever else it waits for.
TEST_F(BoundSenderTest, ALaneWithMemoryThatIsNotReturnedIsWatchedWhileItsWorkerSleeps) {
  std::map<int, uint32_t> watched;
  towline_host_v1_t services = {};
  services.struct_size = sizeof services;
  services.context = &watched;
  services.watch = [](void* context, uint32_t, int fd, uint32_t events, towline_ready_fn, void*) -> int32_t {
    (*static_cast<std::map<int, uint32_t>*>(context))[fd] = events;
    return TOWLINE_OK;
  };
  services.rewatch = services.watch;
  services.unwatch = [](void* context, uint32_t, int fd) {
    static_cast<std::map<int, uint32_t>*>(context)->erase(fd);
  };
  const plugin::Host worker_host(&services);
  BoundMemory memory(kernel, host, SendWay::kEmulated, "");
  ASSERT_NE(memory.add(part(0, kBytes)), nullptr) << memory.why_not();
  auto stream = testing::connected_sockets();
  FlowLane lane(worker_host, 0, Stream::accepted(std::move(stream.first)), true, 1u << 20, "", nullptr,
                nullptr, 1, true, nullptr, &memory);
  const int fd = sockets.first.get();
  lane.attach(std::move(sockets.first), std::make_unique<CopySource>(fd));
  EXPECT_FALSE(lane.arm(false));
  EXPECT_FALSE(watched.contains(fd)) << "nothing comes there";
  framing::PayloadFlow& flow = *lane.payload_flow();
  const towline_landing_piece one = piece(0, 4096);
  ASSERT_TRUE(flow.sends_from(FakeGpuHost::kDevice, {&one, 1}));
  const iovec sent = {reinterpret_cast<void*>(one.address), one.bytes};
  ASSERT_EQ(flow.write_from({&sent, 1}).bytes, 4096u);
  EXPECT_EQ(lane.lent(), 1u);
  EXPECT_FALSE(lane.arm(false));
  EXPECT_TRUE(watched.contains(fd));
  lane.abandon();
  EXPECT_EQ(lane.returned(), 1u);
}

}  // namespace
}  // namespace towline::tcpx

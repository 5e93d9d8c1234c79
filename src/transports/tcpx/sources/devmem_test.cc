#include "transports/tcpx/sources/devmem.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <thread>

#include "base/error.h"
#include "support/temporary_folder.h"
#include "transports/tcpx/kernel/fake_kernel.h"
#include "transports/tcpx/sources/fake_gpu_host.h"
#include "transports/tcpx/sources/test_support.h"

namespace towline::tcpx {
namespace {

using testing::FakeKernel;

class DevmemTest : public ::testing::Test {
 protected:
  static PoolMemory memory(uint64_t bytes) {
    UniqueFd file = create_memfd("pool", bytes);
    return {Mapping::map_shared(file.get(), bytes, MapAccess::kReadWrite), std::move(file), nullptr};
  }
  std::unique_ptr<DevmemProvider> open() { return std::make_unique<DevmemProvider>(kernel, options, memory); }
  std::string why_not() {
    try {
      (void)open();
      return "";
    } catch (const core::Error& error) {
      return error.message();
    }
  }

  support::TemporaryFolder folder;
  FakeKernel kernel;
  NicOptions options = {"nic0", {2, 3}, 1u << 20, folder.path(), ""};
};

TEST_F(DevmemTest, MemoryIsBoundToTheQueuesForAsLongAsItIsUsed) {
  auto provider = open();
  EXPECT_EQ(kernel.bindings.size(), 1u);
  EXPECT_EQ(kernel.bound_queues, (std::vector<uint32_t>{2, 3}));
  EXPECT_EQ(provider->pool().number, *kernel.bindings.begin());
  provider.reset();
  EXPECT_TRUE(kernel.bindings.empty());
  EXPECT_EQ(kernel.rings.split, Split::kOff);
}

TEST_F(DevmemTest, ASourceHasARuleAndItsShareOfThePool) {
  auto provider = open();
  const auto [a, b] = testing::connected_sockets();
  auto one = provider->make(b.get());
  EXPECT_EQ(one->tokens(), 256u);
  auto two = provider->make(a.get());
  EXPECT_EQ(one->tokens(), 128u);
  EXPECT_EQ(kernel.rules.size(), 2u);
  one.reset();
  two.reset();
  EXPECT_TRUE(kernel.rules.empty());
}

// As where packets miss the queue: recvmsg() with the flag gives ordinary bytes, which no message speaks of.
TEST_F(DevmemTest, WithoutARuleBytesAreLinear) {
  kernel.rule_error = EOPNOTSUPP;
  auto provider = open();
  auto [writer, reader] = testing::connected_sockets();
  auto source = provider->make(reader.get());
  const auto sent = testing::pattern(1000);
  write_fully(writer.get(), sent);
  std::vector<uint8_t> linear(4096);
  std::array<Fragment, 8> fragments;
  Polled polled;
  do {
    polled = source->poll(linear.data(), linear.size(), fragments);
  } while (polled.io.status == Status::kAgain);
  ASSERT_EQ(polled.io.status, Status::kOk);
  ASSERT_EQ(polled.count, 1u);
  EXPECT_TRUE(fragments[0].linear);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), linear.begin()));
}

TEST_F(DevmemTest, TokensThatAreNotHeldAreIgnored) {
  auto provider = open();
  const auto [a, b] = testing::connected_sockets();
  auto source = provider->make(b.get());
  const uint32_t tokens[] = {1, 1, UINT32_MAX};
  source->release(tokens);
  EXPECT_EQ(source->bad_releases(), 3u);
}

// ---- memory of a GPU

class DevmemGpuTest : public DevmemTest {
 protected:
  std::unique_ptr<DevmemProvider> open_on_gpu() {
    return std::make_unique<DevmemProvider>(kernel, options,
                                            make_gpu_memory(host, testing::FakeGpuHost::kGpu));
  }
  std::string why_not_on_gpu() {
    try {
      (void)open_on_gpu();
      return "it was opened";
    } catch (const core::Error& error) {
      return error.message();
    }
  }

  testing::FakeGpuHost gpu;
  plugin::Host host = gpu.host();
};

TEST_F(DevmemGpuTest, ItsMemoryIsBoundToTheQueuesAndGoesAfterTheBinding) {
  auto provider = open_on_gpu();
  EXPECT_EQ(gpu.asked_gpu, testing::FakeGpuHost::kGpu);
  EXPECT_EQ(gpu.pools, 1);
  EXPECT_EQ(kernel.bindings.size(), 1u);
  EXPECT_NE(provider->where().find("memory of GPU 1 at 0000:04:00.0"), std::string::npos)
      << provider->where();
  const auto [a, b] = testing::connected_sockets();
  const auto source = provider->make(b.get());
  ASSERT_NE(source->pools()[0].reader, nullptr);
  EXPECT_EQ(source->pools()[0].reader->device(), testing::FakeGpuHost::kDevice);
  EXPECT_FALSE(source->pools()[0].pinnable);
}

TEST_F(DevmemGpuTest, TheMemoryGoesWithTheProvider) {
  open_on_gpu().reset();
  EXPECT_EQ(gpu.pools, 0);
  EXPECT_TRUE(kernel.bindings.empty());
}

// As of a NIC below another root: its driver can't map the GPU's memory.
TEST_F(DevmemGpuTest, AWrongPairOfNicAndGpuIsNamedAndNothingStays) {
  options.why =
      "tuning.tcpx.interface names it; it is on another NUMA node from GPU 0000:04:00.0, and nic1 is nearer";
  kernel.bind_error = EINVAL;
  kernel.bind_reason = "failed to map dmabuf attachment";
  const std::string why = why_not_on_gpu();
  for (const char* part : {"failed to map dmabuf attachment", "nic0", "0000:04:00.0", "nic1 is nearer"})
    EXPECT_NE(why.find(part), std::string::npos) << part << ": " << why;
  EXPECT_EQ(gpu.pools, 0);
  EXPECT_TRUE(kernel.bindings.empty());
  EXPECT_EQ(kernel.rings.split, Split::kOff);
}

TEST_F(DevmemGpuTest, WithoutSuchMemoryTheReasonIsSaid) {
  gpu.fails = "GPU 1 has no memory that is a dma-buf";
  EXPECT_NE(why_not_on_gpu().find("no memory that is a dma-buf"), std::string::npos) << why_not_on_gpu();
  gpu.be_older();
  EXPECT_NE(why_not_on_gpu().find("is older"), std::string::npos) << why_not_on_gpu();
  gpu.absent = true;
  EXPECT_NE(why_not_on_gpu().find("no open backend of this agent"), std::string::npos) << why_not_on_gpu();
}

// For the calling thread recvmsg() fails with this errno.
bool fail_receiving_with(uint32_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvmsg, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// ETOOSMALL, which user space has no name for. The data can be received afterwards, with more room.
TEST_F(DevmemTest, AKernelThatFindsTheControlBufferTooShortIsAnErrorAndLosesNothing) {
  auto provider = open();
  auto [writer, reader] = testing::connected_sockets();
  auto source = provider->make(reader.get());
  const auto sent = testing::pattern(1000);
  write_fully(writer.get(), sent);
  std::vector<uint8_t> linear(4096);
  std::array<Fragment, 8> fragments;
  Polled polled;
  bool filtered = false;
  std::thread([&] {
    filtered = fail_receiving_with(525);
    polled = source->poll(linear.data(), linear.size(), fragments);
  }).join();
  ASSERT_TRUE(filtered);
  EXPECT_EQ(polled.io.status, Status::kProtocol);
  EXPECT_EQ(polled.io.vendor_code, 525);
  EXPECT_EQ(polled.count, 0u);
  do {
    polled = source->poll(linear.data(), linear.size(), fragments);
  } while (polled.io.status == Status::kAgain);
  EXPECT_EQ(polled.io.bytes, sent.size());
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), linear.begin()));
}

TEST_F(DevmemTest, EveryReasonIsSaid) {
  NicOptions whole = options;
  options.interface = "";
  EXPECT_NE(why_not().find("tuning.tcpx.interface"), std::string::npos) << why_not();
  options = whole;
  options.queues.clear();
  EXPECT_NE(why_not().find("tuning.tcpx.queues"), std::string::npos) << why_not();
  options = whole;
  kernel.bind_error = EOPNOTSUPP;
  kernel.bind_reason = "device does not support queue memory";
  EXPECT_NE(why_not().find("device does not support queue memory"), std::string::npos) << why_not();
  EXPECT_NE(why_not().find("queues 2, 3 of nic0"), std::string::npos) << why_not();
  EXPECT_EQ(kernel.rings.split, Split::kOff);
  kernel.bind_error = EPERM;
  kernel.bind_reason = "";
  EXPECT_NE(why_not().find("EPERM"), std::string::npos) << why_not();
  kernel.has_netdev = false;
  EXPECT_NE(why_not().find("Linux 6.12"), std::string::npos) << why_not();
}

}  // namespace
}  // namespace towline::tcpx

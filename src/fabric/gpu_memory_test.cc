// Memory of GPUs made of host memory, in TransferEngines: the rails reach it by a dma-buf, and nothing else touches it.
#include "fabric/gpu_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <numeric>

#include "base/clock.h"
#include "fabric/rails.h"
#include "fabric/transfer_engine.h"
#include "gpu/fake/fake_device.h"
#include "memory/shared_memory.h"

namespace towline::fabric::gpu_memory_test {
namespace {

constexpr uint64_t kLimitNs = 20 * kSecondNs;
constexpr uint64_t kBytes = 64 * 1024;
constexpr uint64_t kSkip = 520;  // it begins within a page

Status moved(TransferEngine& engine, Handle number) {
  const Status status = engine.wait(number, kLimitNs);
  (void)engine.wait_fenced(number, kLimitNs);
  engine.release(number);
  return status;
}

TEST(FabricGpuMemory, TheRailsReadAndWriteItAndNothingElseTouchesIt) {
  cuda::Device& device = cuda::fake::fake_device();
  device.start();
  const auto gpu = SharedMemory::allocate(kBytes, 0);
  uint8_t* const address = reinterpret_cast<uint8_t*>(gpu->address()) + kSkip;
  const uint64_t bytes = kBytes - 2 * kSkip;
  std::vector<uint8_t> source(bytes);
  std::iota(source.begin(), source.end(), uint8_t{3});
  std::vector<uint8_t> back(bytes);

  TransferEngine one{make_rails("loopback:gpu-memory"), {}};
  TransferEngine two{make_rails("loopback:gpu-memory"), {}};
  MemoryToRegister wanted{.address = address, .bytes = bytes, .remote_read = true, .remote_write = true};
  const LocalMemory* theirs = nullptr;
  {
    const cuda::DmaExport exported = export_memory_of_gpu(device, 0, wanted);
    theirs = two.register_memory(wanted);
  }  // the rails keep what they need
  const RemoteMemory remote = TransferEngine::import(TransferEngine::descriptor(*theirs));
  const LocalMemory* mine = one.register_memory({source.data(), bytes});
  const LocalMemory* again = one.register_memory({back.data(), bytes});
  const Handle peer = one.connect(two.address());
  ASSERT_EQ(mprotect(gpu->address(), kBytes, PROT_NONE), 0);
  Handle number;
  ASSERT_EQ(one.single(TransferOp::kWrite, peer, *mine, 0, remote, 0, bytes, {}, &number),
            Status::kInProgress);
  EXPECT_EQ(moved(one, number), Status::kOk);
  ASSERT_EQ(one.single(TransferOp::kRead, peer, *again, 0, remote, 0, bytes, {}, &number),
            Status::kInProgress);
  EXPECT_EQ(moved(one, number), Status::kOk);
  ASSERT_EQ(mprotect(gpu->address(), kBytes, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(back, source);
  EXPECT_TRUE(std::equal(source.begin(), source.end(), address));
  EXPECT_EQ(address[-1], 0);
  EXPECT_EQ(address[bytes], 0);
}

TEST(FabricGpuMemory, AGpuThatIsNotThereAndADriverThatRefusesAreNamed) {
  cuda::Device& device = cuda::fake::fake_device();
  device.start();
  const auto why = [&](uint32_t gpu, void* address) -> std::string {
    MemoryToRegister wanted{.address = address, .bytes = 4096};
    try {
      (void)export_memory_of_gpu(device, gpu, wanted);
    } catch (const core::Error& error) {
      EXPECT_EQ(wanted.dmabuf_fd, -1);
      return error.message();
    }
    return "it was exported";
  };
  std::vector<uint8_t> plain(4096);  // the fake driver exports shared memory alone
  EXPECT_NE(why(77, plain.data()).find("there is no GPU 77: CUDA has "), std::string::npos)
      << why(77, plain.data());
  EXPECT_NE(why(0, plain.data()).find("no dma-buf"), std::string::npos) << why(0, plain.data());
}

}  // namespace
}  // namespace towline::fabric::gpu_memory_test

// Bad days of communicators on GPUs, beyond those of forming and capturing: children of fork, and memory that was freed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "collectives/gpu/memory_pool.h"
#include "gpu/collectives_suite.h"
#include "gpu/fake/fake_device.h"
#include "gpu/fake/fake_kernels.h"

namespace towline::gpu_test {
namespace {

using cuda::fake::FakeStream;

constexpr uint64_t kElements = 1000;

class CollectivesOnGpuBadDay : public testing::Test {
 protected:
  void TearDown() override { cuda::fake::faults().reset(); }
};

void fill_with_ones(Buffer& buffer) {
  const std::vector<float> ones(kElements, 1.0f);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(ones.data());
  buffer.put({bytes, bytes + kElements * sizeof(float)});
}

float first_of(Rank& rank, const Buffer& buffer) {
  float first = 0;
  rank.gpu.get(&first, buffer.at(), sizeof first);
  return first;
}

// What one rank holds, and the first of its calls that a child of fork is not refused, counted from 1; 0: none.
struct Held {
  Rank& rank;
  towline_window_t* window;
  towline_work_t* work;
  FakeStream& stream;

  [[nodiscard]] int not_refused(const towline_collective_t& call) const {
    ::alarm(20);  // a call that waits for threads that only the parent has
    towline_work_t* made = nullptr;
    towline_window_call_t put = {};
    put.struct_size = sizeof put;
    put.op = TOWLINE_WINDOW_SIGNAL;
    towline_collective_norm_t norm = {};
    norm.struct_size = sizeof norm;
    norm.rows = 1;
    norm.width = kElements;
    norm.input = norm.output = call.output;
    towline_window_t* another = nullptr;
    void* const no_stream = reinterpret_cast<void*>(alignof(FakeStream));
    size_t needed = 0;
    const bool refused[] = {
        towline_collective_issue(rank.on_gpu, &call, nullptr, &stream) == TOWLINE_FORKED,
        towline_collective_issue_beside(rank.on_gpu, &call, nullptr, &stream, &made) == TOWLINE_FORKED,
        towline_collective_issue_norm(rank.on_gpu, &norm, nullptr, &stream) == TOWLINE_FORKED,
        towline_collective(rank.on_gpu, &call, nullptr, nullptr) == TOWLINE_FORKED,
        // Before it looks at the stream, whose lock a thread of the parent's may have held.
        towline_work_wait_on(work, no_stream) == TOWLINE_FORKED,
        towline_work_wait(work, TOWLINE_FOREVER) == TOWLINE_FORKED,
        towline_work_on(
            work, TOWLINE_WORK_END, [](void*, towline_work_t*) {}, nullptr) == TOWLINE_FORKED,
        towline_window_issue(window, &put, 0, &stream) == TOWLINE_FORKED,
        towline_window_create(rank.on_gpu, nullptr, 4096, &another) == TOWLINE_FORKED,
        towline_window_destroy(window, TOWLINE_FOREVER) == TOWLINE_OK,
        towline_communicator_info(rank.on_gpu, nullptr, 0, &needed) == TOWLINE_FORKED,
        towline_communicator_destroy(rank.on_gpu) == TOWLINE_OK};
    for (size_t i = 0; i < std::size(refused); ++i)
      if (!refused[i]) return static_cast<int>(i) + 1;
    return 0;
  }
};

TEST_F(CollectivesOnGpuBadDay, AChildOfForkIsRefusedAndTheParentGoesOn) {
  std::atomic<bool> over{false};
  run_on_gpus({}, false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, kElements * 4);
    fill_with_ones(buffer);
    const towline_collective_t call = reduce_call(buffer, buffer, kElements);
    FakeStream stream(0);
    towline_window_t* window = nullptr;
    ASSERT_EQ(towline_window_create(rank.on_gpu, nullptr, 4096, &window), TOWLINE_OK) << towline_last_error();
    towline_work_t* work = nullptr;
    if (rank.rank == 1) {
      while (!over) std::this_thread::yield();
    }
    ASSERT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, nullptr, &stream, &work), TOWLINE_OK)
        << towline_last_error();
    if (rank.rank == 0) {  // whose operation is under way, since the other is not there yet
      const pid_t child = ::fork();
      if (child == 0) ::_exit(Held{rank, window, work, stream}.not_refused(call));
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << (WIFEXITED(status) ? WEXITSTATUS(status) : -1);
      over = true;
    }
    EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
    towline_work_release(work);
    EXPECT_EQ(first_of(rank, buffer), 2.0f);
    EXPECT_EQ(towline_window_destroy(window, 60'000'000'000), TOWLINE_OK) << towline_last_error();
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
  });
}

void expect_named(bool input) {
  const std::string text = towline_last_error();
  EXPECT_NE(text.find(input ? "input at" : "output at"), std::string::npos) << text;
  EXPECT_NE(text.find("neither memory of GPU 0 nor pinned"), std::string::npos) << text;
}

// Before anything is enqueued, so that the rank may come with other memory: the others wait for it, and do not notice.
TEST_F(CollectivesOnGpuBadDay, BuffersThatWereFreedAreRefusedAndTheOperationCanStillBeIssued) {
  run_on_gpus({}, false, [](Rank& rank) {
    Buffer freed(rank.gpu, kElements * 4);
    Buffer buffer(rank.gpu, kElements * 4);
    fill_with_ones(buffer);
    FakeStream stream(0);
    meet(rank);
    if (rank.rank == 1) {
      cuda::fake::faults().forget(reinterpret_cast<uint64_t>(freed.at()), kElements * 4);
      for (const bool input : {true, false}) {
        const towline_collective_t wrong =
            input ? reduce_call(freed, buffer, kElements) : reduce_call(buffer, freed, kElements);
        towline_work_t* work = nullptr;
        EXPECT_EQ(towline_collective_issue(rank.on_gpu, &wrong, nullptr, &stream), TOWLINE_INVALID_ARGUMENT);
        expect_named(input);
        EXPECT_EQ(towline_collective_issue_beside(rank.on_gpu, &wrong, nullptr, &stream, &work),
                  TOWLINE_INVALID_ARGUMENT);
        expect_named(input);
        EXPECT_EQ(work, nullptr);
      }
    }
    const towline_collective_t call = reduce_call(buffer, buffer, kElements);
    EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, &stream), TOWLINE_OK)
        << towline_last_error();
    stream.drain();
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    EXPECT_EQ(first_of(rank, buffer), 2.0f);
  });
}

// A call that waits is this rank's turn already: the others must not wait for it in vain.
TEST_F(CollectivesOnGpuBadDay, ACallThatWaitsWithFreedMemoryEndsTheCommunicatorOnAllRanks) {
  run_on_gpus({}, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, kElements * 4);
    const towline_collective_t call = reduce_call(buffer, buffer, kElements);
    if (rank.rank == 1) cuda::fake::faults().forget(reinterpret_cast<uint64_t>(buffer.at()), kElements * 4);
    const int32_t status = towline_collective(rank.on_gpu, &call, nullptr, nullptr);
    if (rank.rank == 1) {
      EXPECT_EQ(status, TOWLINE_INVALID_ARGUMENT);
      expect_named(true);
    } else {
      EXPECT_EQ(status, TOWLINE_CANCELLED);
      EXPECT_EQ(communicator_error(rank.on_gpu), "rank 1 aborted the communicator");
    }
  });
}

// Others count on what a rank has issued, though it ends its communicator before its stream has come that far.
TEST_F(CollectivesOnGpuBadDay, ARankMayEndItsCommunicatorBeforeItsOperationHasBegun) {
  std::atomic<FakeStream*> held{nullptr};
  std::unique_ptr<Buffer> its_buffer;  // outlives its operation
  run_on_gpus({}, false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, kElements * sizeof(float));
    fill_with_ones(buffer);
    void* const stream = rank.gpu.make_stream();
    if (rank.rank == 1) {
      static_cast<FakeStream*>(stream)->hold(true);
      held = static_cast<FakeStream*>(stream);
      its_buffer = std::make_unique<Buffer>(rank.gpu, kElements * sizeof(float));
      fill_with_ones(*its_buffer);
    }
    Buffer& used = rank.rank == 1 ? *its_buffer : buffer;
    const towline_collective_t call = reduce_call(used, used, kElements);
    ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
        << towline_last_error();
    if (rank.rank == 1) return;  // and so its communicator ends
    // It would be told of within some 10 ms.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (std::chrono::steady_clock::now() < until && communicator_error(rank.on_gpu).empty())
      std::this_thread::yield();
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    while (held == nullptr) std::this_thread::yield();
    held.load()->hold(false);
    rank.gpu.drain(stream);
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    EXPECT_EQ(first_of(rank, buffer), 2.0f);
    rank.gpu.free_stream(stream);
  });
  std::string why_not;
  platform(why_not)->free_stream(held);
}

// A window keeps the pool's memory that it maps, on all ranks; the next allocation is another piece.
TEST_F(CollectivesOnGpuBadDay, MemoryOfThePoolThatWasFreedStaysWhileAWindowMapsIt) {
  run_on_gpus({}, false, [](Rank& rank) {
    constexpr uint64_t kBytes = 1 << 16;
    void* const pooled = rank.gpu.pool_allocate(kBytes);
    ASSERT_NE(pooled, nullptr);
    towline_window_t* window = nullptr;
    ASSERT_EQ(towline_window_create(rank.on_gpu, pooled, kBytes, &window), TOWLINE_OK)
        << towline_last_error();
    rank.gpu.pool_release(pooled);
    void* const next = rank.gpu.pool_allocate(kBytes);
    EXPECT_NE(next, pooled);
    Buffer mine(rank.gpu, kBytes);
    mine.put(std::vector<uint8_t>(kBytes, static_cast<uint8_t>(rank.rank + 1)));
    meet(rank);
    EXPECT_EQ(towline_window_put(window, 1 - rank.rank, 0, mine.at(), kBytes), TOWLINE_OK)
        << towline_last_error();
    EXPECT_EQ(towline_window_signal(window, 1 - rank.rank), TOWLINE_OK);
    EXPECT_EQ(towline_window_wait_signal(window, 1 - rank.rank, 60'000'000'000), TOWLINE_OK);
    Buffer got(rank.gpu, kBytes);
    EXPECT_EQ(towline_window_get(window, rank.rank, 0, got.at(), kBytes), TOWLINE_OK);
    EXPECT_TRUE(got.get() == std::vector<uint8_t>(kBytes, static_cast<uint8_t>(2 - rank.rank)));
    EXPECT_EQ(towline_window_destroy(window, 60'000'000'000), TOWLINE_OK) << towline_last_error();
    rank.gpu.pool_release(next);
  });
}

void write_a_byte(const void* argument, uint32_t, uint32_t) {
  *reinterpret_cast<volatile uint8_t*>(*static_cast<const uint64_t*>(argument)) = 1;
}

TEST(MemoryPool, MemoryGoesOnlyAfterTheKernelsThatUseIt) {
  constexpr uint64_t kLookNs = 50'000'000;
  cuda::KernelDevice& device = cuda::fake::fake_kernel_device();
  void* const pooled = collectives::gpu::pool_allocate(device, 0, 1 << 20);
  ASSERT_NE(pooled, nullptr);
  const cuda::KernelModel models[] = {write_a_byte};
  cuda::KernelSet set;
  set.models = models;
  set.argument_bytes = sizeof(uint64_t);
  const auto kernels = device.load(0, set);
  auto stream = std::make_unique<FakeStream>(0);
  stream->hold(true);
  const auto address = reinterpret_cast<uint64_t>(pooled);
  ASSERT_EQ(kernels->launch(0, &address, {}, stream.get()), 0);
  std::atomic<bool> freed{false};
  std::thread thread([&] {
    collectives::gpu::pool_free(pooled);
    freed = true;
  });
  const uint64_t until = monotonic_now_ns() + kLookNs;
  while (!freed && monotonic_now_ns() < until) std::this_thread::yield();
  EXPECT_FALSE(freed);
  if (freed)
    (void)stream.release();  // its kernel would write where no memory is
  else
    stream->hold(false);
  thread.join();
}

}  // namespace
}  // namespace towline::gpu_test

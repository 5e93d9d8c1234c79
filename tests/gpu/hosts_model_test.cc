// Faults of messages and windows between hosts that only the model of GPUs can have.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "gpu/collectives_suite.h"
#include "gpu/fake/fake_device.h"
#include "gpu/fake/fake_kernels.h"

namespace towline::gpu_test {
namespace {

// A message that can't begin does not end well, and the other rank does not wait for it.
TEST(MessagesBetweenHostsFail, ARefusedOneFailsOnBothRanks) {
  Ranks ranks;
  ranks.config = "collectives.on_gpu = \"gpu\"\n";
  ranks.hosts = {"a", "b"};
  run_on_gpus(ranks, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 64);
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = rank.rank == 0 ? TOWLINE_COLLECTIVE_SEND : TOWLINE_COLLECTIVE_RECV;
    call.count = 4;
    call.root = 1 - rank.rank;
    call.input = call.output = buffer.at();
    if (rank.rank == 0) cuda::fake::faults().forget(reinterpret_cast<uint64_t>(buffer.at()), 64);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(communicator_error(rank.on_gpu).find("neither memory of GPU"), std::string::npos)
        << communicator_error(rank.on_gpu);
  });
  cuda::fake::faults().reset();  // what is allocated there next is well
}

// The driver may wait for kernels that run before it makes a stream, and they may wait for this very message: so all streams are there
// when the communicator is.
TEST(MessagesBetweenHosts, AskTheDriverForNoStream) {
  Ranks ranks;
  ranks.size = 4;
  ranks.config = "collectives.on_gpu = \"gpu\"\n";
  ranks.hosts = {"a", "a", "b", "b"};
  run_on_gpus(ranks, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 64);
    meet(rank);
    cuda::fake::faults().refuse_streams(0);
    towline_batch_t* batch = nullptr;
    ASSERT_EQ(towline_batch_create(rank.on_gpu, &batch), TOWLINE_OK);
    for (int peer = 0; peer < rank.size; ++peer)
      for (const uint32_t op : {TOWLINE_COLLECTIVE_RECV, TOWLINE_COLLECTIVE_SEND}) {
        if (peer == rank.rank) continue;
        towline_collective_t call = {};
        call.struct_size = sizeof call;
        call.op = op;
        call.count = 0;
        call.root = peer;
        call.input = call.output = buffer.at();
        ASSERT_EQ(towline_batch_add(batch, &call), TOWLINE_OK);
      }
    EXPECT_EQ(towline_batch_issue(batch, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
    towline_batch_destroy(batch);
  });
  cuda::fake::faults().reset();
}

// Agents that have no plugin for memory of GPUs can't give it to other hosts. The window is of all ranks or of none.
TEST(WindowsBetweenHostsFail, WithoutAPluginForMemoryOfGpusEveryRankIsTold) {
  const std::string plugins = ::getenv("TOWLINE_PLUGINS");
  ::unsetenv("TOWLINE_PLUGINS");
  Ranks ranks;
  ranks.config = "collectives.on_gpu = \"gpu\"\n";
  ranks.hosts = {"a", "b"};
  run_on_gpus(ranks, false, [](Rank& rank) {
    towline_window_t* window = nullptr;
    EXPECT_EQ(towline_window_create(rank.on_gpu, nullptr, 64, &window), TOWLINE_UNSUPPORTED);
    EXPECT_NE(std::string(towline_last_error()).find("no window: rank 0: "), std::string::npos)
        << towline_last_error();
    Buffer buffer(rank.gpu, 64);
    const towline_collective_t call = reduce_call(buffer, buffer, 4);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
  });
  ::setenv("TOWLINE_PLUGINS", plugins.c_str(), 1);
}

// A stream that still has an operation of a window when that is closed does not reach memory that is gone.
TEST(WindowsBetweenHostsFail, AnOperationOfAClosedWindowIsAnError) {
  Ranks ranks;
  ranks.config = "collectives.on_gpu = \"gpu\"\n";
  ranks.hosts = {"a", "b"};
  std::atomic<int> open{ranks.size};
  run_on_gpus(ranks, false, [&open](Rank& rank) {
    towline_window_t* window = nullptr;
    ASSERT_EQ(towline_window_create(rank.on_gpu, nullptr, 64, &window), TOWLINE_OK) << towline_last_error();
    Buffer buffer(rank.gpu, 64);
    auto* const stream = static_cast<cuda::fake::FakeStream*>(rank.gpu.make_stream());
    if (rank.rank == 0) {
      stream->hold(true);
      towline_window_call_t call = {};
      call.struct_size = sizeof call;
      call.op = TOWLINE_WINDOW_PUT;
      call.rank = 1;
      call.address = buffer.at();
      call.bytes = 64;
      ASSERT_EQ(towline_window_issue(window, &call, 0, stream), TOWLINE_OK) << towline_last_error();
    }
    EXPECT_EQ(towline_window_destroy(window, 60'000'000'000), TOWLINE_OK) << towline_last_error();
    // The failure ends whatever the other rank is doing, which may still be closing the window.
    --open;
    while (open != 0) std::this_thread::yield();
    stream->hold(false);
    while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
    EXPECT_NE(
        communicator_error(rank.on_gpu).find("rank 0 closed a window before its streams had done with it"),
        std::string::npos)
        << communicator_error(rank.on_gpu);
    rank.gpu.drain(stream);
    rank.gpu.free_stream(stream);
  });
}

}  // namespace
}  // namespace towline::gpu_test

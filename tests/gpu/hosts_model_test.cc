// Faults of messages between hosts that only the model of GPUs can have.
#include <gtest/gtest.h>

#include "gpu/collectives_suite.h"
#include "gpu/fake/fake_device.h"

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

}  // namespace
}  // namespace towline::gpu_test

// GPU memory over tcp, as between hosts, on real GPUs: gathered and scattered through staging memory of both processes.
#include <gtest/gtest.h>

#include <string>

#include "gpu/gpu_fixture.h"

namespace towline::gpu_test {
namespace {

AgentOptions over_tcp() {
  AgentOptions options = over_cuda();
  options.backends = "tcp,cuda";
  return options;
}

class OverTcp : public Gpu, public ::testing::WithParamInterface<Sort> {};

TEST_P(OverTcp, PagesMoveBothWaysAndNothingElse) {
  const std::string route = move_pages(over_tcp(), GetParam());
  EXPECT_NE(route.find("by host memory of its owner"), std::string::npos) << route;
}

TEST_P(OverTcp, AKilledOwnerEndsTheTransfer) {
  Target target(other_, kBytes, GetParam());
  GpuMemory memory(*cuda_, 0, kBytes, GetParam());
  const Agent agent("initiator", over_tcp());
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  const Transfer write =
      agent.transfer(agent.block_list(at(memory.address(), kBytes, 0)),
                     peer.block_list(at(target.address(), kBytes, target.gpu())), {.timeout = 30s});
  ASSERT_EQ(run(write), Status::kOk) << last_error();
  target.kill_it();
  Status status = Status::kOk;
  for (int i = 0; i < 1000 && status == Status::kOk; ++i) status = run(write);
  EXPECT_NE(status, Status::kOk);
  EXPECT_EQ(write.wait_fenced(Fence::kLocal, 30s), Status::kOk);
}

INSTANTIATE_TEST_SUITE_P(Sorts, OverTcp, ::testing::Values(Sort::kPlain, Sort::kVmm),
                         [](const auto& sort) { return sort.param == Sort::kVmm ? "vmm" : "plain"; });

}  // namespace
}  // namespace towline::gpu_test

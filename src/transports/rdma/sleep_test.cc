// A worker that goes to sleep.
#include <gtest/gtest.h>

#include "support/failing_new.h"
#include "transports/rdma/plugin.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/test_support.h"

namespace towline::rdma {
namespace {

using towline::testing::FakeAgent;
using towline::testing::turn_until;

TEST(RdmaSleep, NeedsNoMemory) {
  FakeAgent::builtin = towline_tcp_plugin();
  FakeAgent agent(
      towline_rdma_plugin(), "sleepy",
      {{"tuning.rdma.rails", "ofi:tcp;ofi_rxm@127.0.0.1"}, {"tuning.rdma.listen", "127.0.0.1:0"}});
  ASSERT_EQ(agent.status, Status::kOk) << agent.failure;
  bool sleeps = false;
  ASSERT_TRUE(turn_until({&agent}, [&] {
    support::fail_allocations();
    sleeps = agent.data->arm(agent.backend, 0) == 0;
    support::stop_failing();
    return sleeps;
  }));
  agent.data->disarm(agent.backend, 0);
  agent.close();
}

}  // namespace
}  // namespace towline::rdma

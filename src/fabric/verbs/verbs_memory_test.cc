// When memory runs out while a port or a connection is opened, nothing of it stays at the device.
#ifdef TOWLINE_HAVE_IBVERBS

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "fabric/verbs/fake_library.h"
#include "fabric/verbs/verbs_domain.h"
#include "support/failing_allocations.h"

namespace towline::fabric::verbs_memory_test {
namespace {

using testing::FakeDevice;
using testing::FakeVerbs;

constexpr int kMostAllocations = 200;

// Calls it again and again; each time the next of its allocations fails, until none does.
template <class Call>
void with_each_allocation_failing(Call call, const std::function<void()>& after_failure) {
  int failures = 0;
  for (int after = 0; after < kMostAllocations; ++after) {
    bool failed = false;
    support::fail_allocations(after, 1);
    try {
      call();
    } catch (const std::exception&) {
      failed = true;
    }
    support::stop_failing();
    if (!failed) {
      EXPECT_GT(failures, 0);
      return;
    }
    ++failures;
    after_failure();
  }
  ADD_FAILURE() << "it never succeeded";
}

TEST(VerbsMemory, AConnectionThatCantBeOpenedLeavesNoQueuePairAndCanBeOpenedAgain) {
  FakeVerbs world;
  FakeDevice& device = world.add_device("mlx5_0");
  VerbsDomain domain{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  with_each_allocation_failing([&] { (void)domain.open(0, ConnectionEnd::kInitiator); },
                               [&] { EXPECT_TRUE(device.pairs.empty()) << device.pairs.size(); });
  EXPECT_EQ(device.pairs.size(), 1u);
}

TEST(VerbsMemory, APortThatCantBeOpenedLeavesNoRegistration) {
  FakeVerbs world;
  FakeDevice& device = world.add_device("mlx5_0");
  with_each_allocation_failing(
      [&] {
        const VerbsDomain domain(FakeVerbs::library(), {"mlx5_0", 1, -1});
      },
      [&] { EXPECT_TRUE(device.regions.empty()) << device.regions.size(); });
  EXPECT_TRUE(device.regions.empty());
  EXPECT_TRUE(world.faults.empty()) << world.faults.front();
}

}  // namespace
}  // namespace towline::fabric::verbs_memory_test

#endif

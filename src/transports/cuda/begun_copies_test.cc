#include "transports/cuda/begun_copies.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/failing_new.h"

namespace towline::cuda {
namespace {

// The GPU may still write there.
TEST(BegunCopies, WhatAnUnendingCopyUsesIsKeptWithoutMemory) {
  std::vector<std::shared_ptr<int>> held{std::make_shared<int>(7)};
  const std::weak_ptr<int> used = held.front();
  static const void* reachable = nullptr;  // for leak checkers
  reachable = held.data();
  support::fail_allocations();
  keep_for_good(&reachable);
  keep_value_for_good(std::move(held));
  (void)support::stop_failing();
  EXPECT_FALSE(used.expired());
}

}  // namespace
}  // namespace towline::cuda

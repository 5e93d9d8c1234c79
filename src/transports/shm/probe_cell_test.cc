#include "transports/shm/probe_cell.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "transports/shm/process_vm.h"

namespace towline::shm {
namespace {

// A peer may prove process_vm when the connection whose hello it read is gone: what it writes must land nowhere else.
TEST(ProbeCell, TakesWhatAPeerWritesLate) {
  const uint64_t incarnation[2] = {1, 2};
  auto cell = std::make_unique<ProbeCell>();
  const Proof proof{reinterpret_cast<uint64_t>(incarnation), cell->address()};
  cell.reset();
  for (int i = 0; i < 1000; ++i) {
    const ProbeCell later;
    ASSERT_NE(later.address(), proof.probe_address);
  }
  EXPECT_EQ(prove_process_vm(getpid(), proof, incarnation), 0);
}

TEST(ProbeCell, IsUsedAgainInTheEnd) {
  uint64_t first = 0;
  {
    const ProbeCell cell;
    first = cell.address();
  }
  bool again = false;
  for (int i = 0; i < 20000 && !again; ++i) {
    const ProbeCell cell;
    again = cell.address() == first;
  }
  EXPECT_TRUE(again);
}

}  // namespace
}  // namespace towline::shm

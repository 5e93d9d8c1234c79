// A process may exit while agents live: it ends with its own code, whatever their threads do meanwhile.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>

#include "towline/towline.hpp"

namespace towline {
namespace {

using namespace std::chrono_literals;  // NOLINT

// Pointers only, so that nothing here is destroyed at exit.
struct Alive {
  alignas(4096) std::array<std::byte, 4096> source{}, target{};
  Agent writer{"writer"};
  Agent owner{"owner"};
  Region from = writer.register_memory(dram(source), {.access = Access::kAll});
  Region to = owner.register_memory(dram(target), {.access = Access::kAll});
  Peer peer = writer.connect(owner.address());
  BlockList mine = writer.block_list(Blocks::at(source.data(), source.size()));
  BlockList theirs = peer.block_list(Blocks::at(target.data(), target.size()));
  Transfer write = writer.transfer(mine, theirs, {.backend = "tcp"});
};
Alive* alive = nullptr;

// Runs after everything that the library made later than this was registered has been destroyed.
void use_agents_late() {
  for (int i = 0; i < 100; ++i) {
    (void)alive->write.post();
    (void)alive->write.wait(1ms);
  }
}

TEST(Exit, WhileAgentsLiveHasTheApplicationsCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atexit(use_agents_late);
        alive = new Alive;
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace towline

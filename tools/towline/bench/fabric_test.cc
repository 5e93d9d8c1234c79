#include "bench/fabric.h"

#include <gtest/gtest.h>

#include "failure.h"

namespace tool::bench {
namespace {

TEST(FabricBench, CountsEveryWrongByte) {
  std::vector<std::byte> memory(1001);
  fill_pattern(memory, 3, 7);
  EXPECT_EQ(wrong_bytes(memory, 3, 7), 0u);
  // A piece of it is what the whole has there.
  EXPECT_EQ(wrong_bytes(std::span{memory}.subspan(13, 500), 16, 7), 0u);
  memory[0] ^= std::byte{1};
  memory[500] ^= std::byte{0x80};
  memory[1000] ^= std::byte{4};
  EXPECT_EQ(wrong_bytes(memory, 3, 7), 3u);
  EXPECT_GT(wrong_bytes(memory, 4, 7), 900u);
  EXPECT_GT(wrong_bytes(memory, 3, 8), 900u);
}

TEST(FabricBench, InvitationsTravelAsText) {
  const FabricInvitation invitation{{1, 2, 0xff}, {0, 9}};
  const FabricInvitation back = FabricInvitation::parse(invitation.text());
  EXPECT_EQ(back.address, invitation.address);
  EXPECT_EQ(back.descriptor, invitation.descriptor);
  for (const char* bad : {"", "01", "0.00", "00.0", "0g.00", "10.0.0.7:7800"})
    EXPECT_THROW((void)FabricInvitation::parse(bad), Failure) << bad;
}

TEST(FabricBench, RailsThatEndAtTheProcessAreRefused) {
  need_rails_between_processes({"auto", "ofi:tcp;ofi_rxm", "verbs:mlx5_0", "ucx:tcp"});
  EXPECT_THROW(need_rails_between_processes({"ofi:shm", "loopback:x"}), Failure);
}

TEST(FabricBench, RowsFitIntoTheSpan) {
  const auto rows = fabric_rows("both", {4096, 1 << 20}, {}, 64 << 20);
  ASSERT_EQ(rows.size(), 9u);
  EXPECT_EQ(rows[0].batch, 16384u);
  EXPECT_EQ(rows[4].kind, "single");
  EXPECT_EQ(rows[8].kind, "immediate");
  EXPECT_THROW((void)fabric_rows("initiator", {4096}, {100}, 4096), Failure);
  EXPECT_THROW((void)fabric_rows("mixed", {4096}, {1}, 4096), Failure);
  EXPECT_THROW((void)fabric_rows("initiator", {4096, 8192}, {1, 1, 1}, 1 << 20), Failure);
}

}  // namespace
}  // namespace tool::bench

// A disk that is slower than the network which brings what it is to store: it is waited for, with no more
// than the staging memory in between, and others go on.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "storage_bad_disk.h"
#include "storage_support.h"
#include "support/stamps.h"

namespace towline::faults {
namespace {

constexpr uint64_t kSlowBytes = 2 << 20;

TEST(StorageDevices, ADiskSlowerThanTheNetworkIsWaitedForWhileOthersGoOn) {
  const Folder folder, mount;
  BadDisk disk(mount.path(), kSlowBytes);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  Memory memory(kSlowBytes), mine(kSlowBytes);
  support::stamp_bytes(memory.data(), kSlowBytes, 1);
  const Agent owner("owner", {.listen = "127.0.0.1:0", .backends = "tcp"});
  const Region theirs = owner.register_memory(dram(memory), {.access = Access::kAll});
  const Agent agent("stager",
                    {.listen = "none",
                     .backends = "tcp,posix",
                     .config = "[tuning.staging]\nchunk = \"64KiB\"\ndepth = 2\nbytes = \"256KiB\"\n"});
  const Region ours = agent.register_memory(dram(mine), {.access = Access::kAll});
  const Peer peer = agent.connect(owner.address());
  const BlockList there = peer.block_list(blocks_of(memory.data(), kSlowBytes, 4096));
  const auto save_to = [&](const Region& file) {
    return agent.transfer(there, agent.block_list(file.blocks(0, kSlowBytes)));
  };
  const Region slow = agent.register_storage("file:" + disk.file(), {.access = Access::kAll, .direct = true});
  const Region quick = agent.register_storage("file:" + (folder / "quick"),
                                              {.access = Access::kAll, .create = true, .bytes = kSlowBytes});
  const Transfer save = save_to(slow);
  disk.faults().writes_hang = 1;
  ASSERT_EQ(save.post(), Status::kInProgress);
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (disk.faults().hanging == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  ASSERT_GT(disk.faults().hanging, 0u);
  // Beside it: from the same peer to memory and to another file.
  ASSERT_EQ(run(agent.transfer(there, agent.block_list(blocks_of(mine.data(), kSlowBytes, 4096)))),
            Status::kOk);
  EXPECT_EQ(support::first_difference(mine.data(), kSlowBytes, 1), kSlowBytes);
  EXPECT_EQ(run(save_to(quick)), Status::kOk);
  EXPECT_EQ(save.poll(), Status::kInProgress);
  EXPECT_EQ(save.result().bytes, 0u) << "nothing has been stored yet";
  disk.faults().writes_hang = 0;
  ASSERT_EQ(save.wait(60s), Status::kOk);
  EXPECT_EQ(save.result().bytes, kSlowBytes);
  std::memset(mine.data(), 0, kSlowBytes);
  ASSERT_EQ(run(agent.transfer(agent.block_list(slow.blocks(0, kSlowBytes)),
                               agent.block_list(blocks_of(mine.data(), kSlowBytes, 4096)))),
            Status::kOk);
  EXPECT_EQ(support::first_difference(mine.data(), kSlowBytes, 1), kSlowBytes);
}

}  // namespace
}  // namespace towline::faults

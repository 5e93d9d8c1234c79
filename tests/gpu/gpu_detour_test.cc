// GPU memory that takes two steps, on real GPUs: through host memory of both processes, and to files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "gpu/gpu_fixture.h"
#include "support/temporary_folder.h"
#include "towline/storage.hpp"

namespace towline::gpu_test {
namespace {

constexpr const char* kThroughHost = "[tuning.cuda]\nthrough_host = \"always\"\n";

class Detour : public Gpu, public ::testing::WithParamInterface<Sort> {};

TEST_P(Detour, PagesMoveBothWaysAndNothingElse) {
  const std::string route = move_pages(over_cuda(kThroughHost), GetParam());
  EXPECT_NE(route.find("through host memory: asked for"), std::string::npos) << route;
}

TEST_P(Detour, AKilledOwnerEndsTheTransfer) {
  Target target(other_, kBytes, GetParam());
  GpuMemory memory(*cuda_, 0, kBytes, GetParam());
  const Agent agent("initiator", over_cuda(kThroughHost));
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

INSTANTIATE_TEST_SUITE_P(Sorts, Detour, ::testing::Values(Sort::kPlain, Sort::kVmm),
                         [](const auto& sort) { return sort.param == Sort::kVmm ? "vmm" : "plain"; });

// Memory that the driver does not pin, or not for writing: it must still be moved.
TEST_F(Gpu, HostMemoryMovesWhetherItCanBePinnedOrNot) {
  Target target(other_, kBytes, Sort::kPlain);
  cuda_->use(0);
  const support::TemporaryFolder folder;
  const int fd = open((folder / "pages").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  const std::vector<uint8_t> sent = stamped(kBytes, 1);
  ASSERT_EQ(pwrite(fd, sent.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
  struct Case {
    const char* name;
    const char* settings;
    int access;
    int flags;
  };
  for (const Case& one :
       {Case{"never pinned", "[tuning.cuda]\npin = \"never\"\n", PROT_READ | PROT_WRITE, MAP_PRIVATE},
        Case{"a file mapped for writing", "", PROT_READ | PROT_WRITE, MAP_SHARED},
        Case{"a file mapped for reading", "", PROT_READ, MAP_SHARED},
        Case{"a private mapping for reading", "", PROT_READ, MAP_PRIVATE}}) {
    void* const host = mmap(nullptr, kBytes, one.access, one.flags, fd, 0);
    ASSERT_NE(host, MAP_FAILED);
    const bool writable = (one.access & PROT_WRITE) != 0;
    {
      const Agent agent("initiator", over_cuda(one.settings));
      const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
      const Region region =
          agent.register_memory(dram(host, kBytes), {.access = writable ? Access::kAll : Access::kRead});
      const BlockList mine = agent.block_list(blocks_of(host, kBytes, 32768));
      const BlockList theirs =
          peer.block_list(at(target.address(), 32768, target.gpu()).repeat(kBytes / 32768, 32768));
      target.stamp(2);
      const Transfer write = agent.transfer(mine, theirs);
      EXPECT_EQ(run(write), Status::kOk) << one.name << ": " << last_error();
      EXPECT_TRUE(target.get() == sent) << one.name << ' ' << write.route();
      if (writable) {
        target.stamp(3);
        EXPECT_EQ(run(agent.transfer(theirs, mine)), Status::kOk) << one.name << last_error();
        EXPECT_EQ(std::memcmp(host, stamped(kBytes, 3).data(), kBytes), 0) << one.name;
        std::memcpy(host, sent.data(), kBytes);
      }
    }
    munmap(host, kBytes);
  }
  close(fd);
}

TEST_F(Gpu, HostMemoryThatIsMovedAgainIsPinnedMeanwhile) {
  constexpr uint64_t kPage = 32768;
  Target target(other_, kBytes, Sort::kPlain);
  cuda_->use(0);
  std::vector<uint8_t> host(kBytes);
  const Agent agent("initiator", over_cuda());
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  const Region region = agent.register_memory(dram(host.data(), kBytes), {.access = Access::kAll});
  const BlockList mine = agent.block_list(blocks_of(host.data(), kBytes, kPage));
  const BlockList theirs =
      peer.block_list(at(target.address(), kPage, target.gpu()).repeat(kBytes / kPage, kPage));
  const Transfer write = agent.transfer(mine, theirs);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  // The part of a route that tells how much went through the pool.
  const auto chunks = [&] {
    const std::string route = write.route();
    const size_t at = route.find("\"chunks\":");
    return at == std::string::npos ? std::string() : route.substr(at, route.find(',', at) - at);
  };
  std::string before;
  std::string after;
  for (uint64_t post = 1; std::chrono::steady_clock::now() < end || post < 5; ++post) {
    std::memcpy(host.data(), stamped(kBytes, post).data(), kBytes);
    ASSERT_EQ(run(write), Status::kOk) << last_error();
    ASSERT_TRUE(target.get() == host) << post << ' ' << write.route();
    before = std::exchange(after, chunks());
  }
  EXPECT_FALSE(after.empty()) << "the first went through the pool: " << write.route();
  EXPECT_EQ(before, after) << "the last did not";
}

class Files : public Gpu {
 protected:
  static AgentOptions options() {
    AgentOptions options = over_cuda();
    options.backends = "cuda,posix";
    return options;
  }
  static Region open(const Agent& agent, const support::TemporaryFolder& folder) {
    return agent.register_storage("file:" + (folder / "pages"), {.create = true, .bytes = kBytes});
  }
  static std::vector<uint8_t> contents(const support::TemporaryFolder& folder) {
    std::ifstream file(folder / "pages", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(Files, OurGpusMemoryGoesToAFileAndComesBack) {
  const support::TemporaryFolder folder;
  GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);
  const Agent agent("owner", options());
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  const Region file = open(agent, folder);
  const BlockList stored = agent.block_list(file.blocks(0, kBytes));
  const BlockList ours = agent.block_list(at(memory.address(), kBytes, 0));
  memory.put(stamped(kBytes, 1));
  ASSERT_EQ(run(agent.transfer(ours, stored)), Status::kOk) << last_error();
  EXPECT_TRUE(contents(folder) == stamped(kBytes, 1));
  memory.put(std::vector<uint8_t>(kBytes));
  ASSERT_EQ(run(agent.transfer(stored, ours)), Status::kOk) << last_error();
  EXPECT_TRUE(memory.get() == stamped(kBytes, 1));
}

TEST_F(Files, APeersGpuMemoryGoesToAFileAndComesBack) {
  const support::TemporaryFolder folder;
  Target target(other_, kBytes, Sort::kPlain);
  GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);  // the agent uses a GPU
  const Agent agent("initiator", options());
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  const Region file = open(agent, folder);
  const BlockList stored = agent.block_list(file.blocks(0, kBytes));
  const BlockList theirs = peer.block_list(at(target.address(), kBytes, target.gpu()));
  target.stamp(2);
  ASSERT_EQ(run(agent.transfer(theirs, stored)), Status::kOk) << last_error();
  EXPECT_TRUE(contents(folder) == stamped(kBytes, 2));
  target.stamp(3);
  ASSERT_EQ(run(agent.transfer(stored, theirs)), Status::kOk) << last_error();
  EXPECT_TRUE(target.get() == stamped(kBytes, 2));
}

}  // namespace
}  // namespace towline::gpu_test

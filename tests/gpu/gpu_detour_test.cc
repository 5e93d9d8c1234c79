// GPU memory that takes two steps, on real GPUs: through host memory of both processes, and to files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>

#include "gpu/gpu_fixture.h"
#include "support/temporary_folder.h"
#include "towline/storage.hpp"

namespace towline::gpu_test {
namespace {

constexpr const char* kThroughHost = "[cuda]\nthrough_host = \"always\"\n";

class Detour : public Gpu, public ::testing::WithParamInterface<Sort> {};

TEST_P(Detour, PagesMoveBothWaysAndNothingElse) {
  Target target(other_, kBytes, GetParam());
  GpuMemory memory(*cuda_, 0, kBytes, GetParam());
  const Agent agent("initiator", over_cuda(kThroughHost));
  const Region region = agent.register_memory(view(memory));
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  std::mt19937 random(3);
  for (const uint64_t page : {65536, 4096, 1000}) {
    const auto count = static_cast<uint32_t>(kBytes / page);
    std::vector<uint32_t> from(count);
    std::iota(from.begin(), from.end(), 0u);
    std::vector<uint32_t> to = from;
    std::shuffle(from.begin(), from.end(), random);
    std::shuffle(to.begin(), to.end(), random);
    const auto half = count / 2;
    const BlockList mine = agent.block_list(at(memory.address(), page, 0).repeat(count, page));
    const BlockList theirs = peer.block_list(at(target.address(), page, target.gpu()).repeat(count, page));
    memory.put(stamped(kBytes, page));
    target.stamp(page + 1);
    const Transfer write =
        agent.transfer(Op::write, mine, std::span(from).first(half), theirs, std::span(to).first(half));
    EXPECT_NE(write.route().find("through host memory: asked for"), std::string::npos) << write.route();
    ASSERT_EQ(run(write), Status::kOk) << last_error();
    std::vector<uint8_t> expected = stamped(kBytes, page + 1);
    const std::vector<uint8_t> sent = stamped(kBytes, page);
    for (uint32_t i = 0; i < half; ++i)
      std::memcpy(expected.data() + to[i] * page, sent.data() + from[i] * page, page);
    ASSERT_TRUE(target.get() == expected) << "written, pages of " << page;
    const Transfer read =
        agent.transfer(Op::read, mine, std::span(from).first(half), theirs, std::span(to).last(half));
    ASSERT_EQ(run(read), Status::kOk) << last_error();
    std::vector<uint8_t> here = sent;
    for (uint32_t i = 0; i < half; ++i)
      std::memcpy(here.data() + from[i] * page, expected.data() + to[count - half + i] * page, page);
    ASSERT_TRUE(memory.get() == here) << "read, pages of " << page;
  }
}

TEST_P(Detour, AKilledOwnerEndsTheTransfer) {
  Target target(other_, kBytes, GetParam());
  GpuMemory memory(*cuda_, 0, kBytes, GetParam());
  const Agent agent("initiator", over_cuda(kThroughHost));
  const Region region = agent.register_memory(view(memory));
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  const Transfer write =
      agent.transfer(Op::write, agent.block_list(at(memory.address(), kBytes, 0)),
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

class Files : public Gpu {
 protected:
  static AgentOptions options() {
    AgentOptions options = over_cuda();
    options.backends = "cuda,posix";
    return options;
  }
  static Region open(const Agent& agent, const support::TemporaryFolder& folder) {
    return register_storage(agent, "file:" + (folder / "pages"), {.create = true, .bytes = kBytes});
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
  const Region region = agent.register_memory(view(memory));
  const Region file = open(agent, folder);
  const BlockList stored = agent.block_list(storage_blocks(file, 0, kBytes));
  const BlockList ours = agent.block_list(at(memory.address(), kBytes, 0));
  memory.put(stamped(kBytes, 1));
  ASSERT_EQ(run(agent.transfer(Op::write, ours, stored)), Status::kOk) << last_error();
  EXPECT_TRUE(contents(folder) == stamped(kBytes, 1));
  memory.put(std::vector<uint8_t>(kBytes));
  ASSERT_EQ(run(agent.transfer(Op::read, ours, stored)), Status::kOk) << last_error();
  EXPECT_TRUE(memory.get() == stamped(kBytes, 1));
}

TEST_F(Files, APeersGpuMemoryGoesToAFileAndComesBack) {
  const support::TemporaryFolder folder;
  Target target(other_, kBytes, Sort::kPlain);
  GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);  // the agent uses a GPU
  const Agent agent("initiator", options());
  const Region region = agent.register_memory(view(memory));
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  const Region file = open(agent, folder);
  const BlockList stored = agent.block_list(storage_blocks(file, 0, kBytes));
  const BlockList theirs = peer.block_list(at(target.address(), kBytes, target.gpu()));
  target.stamp(2);
  ASSERT_EQ(run(agent.transfer(Op::read, stored, theirs)), Status::kOk) << last_error();
  EXPECT_TRUE(contents(folder) == stamped(kBytes, 2));
  target.stamp(3);
  ASSERT_EQ(run(agent.transfer(Op::write, stored, theirs)), Status::kOk) << last_error();
  EXPECT_TRUE(target.get() == stamped(kBytes, 2));
}

}  // namespace
}  // namespace towline::gpu_test

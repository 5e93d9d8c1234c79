// The cuda transport on real GPUs: memory of both sorts, in this process and in another, on one GPU or two.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "gpu/gpu_fixture.h"
#include "support/directed.h"

namespace towline::gpu_test {
namespace {

class Processes : public Gpu, public ::testing::WithParamInterface<Sort> {};

TEST_P(Processes, PagesMoveBothWaysAndNothingElse) {
  const std::string route = move_pages(over_cuda(), GetParam());
  EXPECT_EQ(route.find("through host memory"), std::string::npos) << route;
}

TEST_P(Processes, AnyAddressAndLengthMovesExactly) {
  Target target(other_, kBytes, GetParam());
  GpuMemory memory(*cuda_, 0, kBytes, GetParam());
  const Agent agent("initiator", over_cuda());
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  for (const uint64_t length : {1, 3, 16, 63, 1001, 4097, 40000}) {
    for (const uint64_t shift : {0, 1, 4, 8, 16}) {
      memory.put(stamped(kBytes, length));
      target.stamp(length + 100);
      std::vector<uint8_t> expected = stamped(kBytes, length + 100);
      const std::vector<uint8_t> sent = stamped(kBytes, length);
      const uint64_t here = length + 5;
      const uint64_t there = length + 21;
      const BlockList mine = agent.block_list(at(memory.address() + 16 + shift, length, 0).repeat(100, here));
      const BlockList theirs =
          peer.block_list(at(target.address() + 32, length, target.gpu()).repeat(100, there));
      ASSERT_EQ(run(agent.transfer(mine, theirs)), Status::kOk) << last_error();
      for (uint64_t i = 0; i < 100; ++i)
        std::memcpy(expected.data() + 32 + i * there, sent.data() + 16 + shift + i * here, length);
      ASSERT_TRUE(target.get() == expected) << length << " bytes, shifted by " << shift;
    }
  }
}

// 64 pages of 16 tokens of 8 heads there; heads outside tokens here.
TEST_P(Processes, HeadsAreRecutOnTheWay) {
  constexpr uint64_t kHead = 256;
  constexpr uint64_t kTokens = 16;
  constexpr uint64_t kHeads = 8;
  constexpr uint64_t kPages = 64;
  constexpr uint64_t kPage = kTokens * kHeads * kHead;
  Target target(other_, kBytes, GetParam());
  GpuMemory memory(*cuda_, 0, kBytes, GetParam());
  const Agent agent("initiator", over_cuda());
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  target.stamp(9);
  const std::vector<uint8_t> theirs = stamped(kBytes, 9);
  const BlockList there = peer.block_list(at(target.address(), kHead, target.gpu())
                                              .repeat(kPages, kPage)
                                              .repeat(kHeads, kHead)
                                              .repeat(kTokens, kHeads * kHead));
  const BlockList here =
      agent.block_list(at(memory.address(), kHead, 0).repeat(kPages * kHeads * kTokens, kHead));
  memory.put(std::vector<uint8_t>(kBytes));
  ASSERT_EQ(run(agent.transfer(there, here)), Status::kOk) << last_error();
  const std::vector<uint8_t> now = memory.get();
  for (uint64_t p = 0; p < kPages; ++p)
    for (uint64_t h = 0; h < kHeads; ++h)
      for (uint64_t t = 0; t < kTokens; ++t)
        ASSERT_EQ(std::memcmp(now.data() + ((p * kHeads + h) * kTokens + t) * kHead,
                              theirs.data() + p * kPage + (t * kHeads + h) * kHead, kHead),
                  0)
            << p << ' ' << h << ' ' << t;
}

TEST_P(Processes, HostMemoryMovesToAPeersGpuAndBackWithoutIt) {
  Target target(other_, kBytes, GetParam());
  cuda_->use(0);
  const Memory shared(kBytes);
  std::vector<std::byte> plain(kBytes);
  const Agent agent("initiator", over_cuda());
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  const BlockList theirs =
      peer.block_list(at(target.address(), 4096, target.gpu()).repeat(kBytes / 4096, 4096));
  for (const std::span<std::byte> host : {shared.bytes(), std::span(plain)}) {
    const Region region = agent.register_memory(dram(host), {.access = Access::kAll});
    const BlockList mine = agent.block_list(blocks_of(host.data(), host.size(), 4096));
    const std::vector<uint8_t> sent = stamped(kBytes, 5);
    std::memcpy(host.data(), sent.data(), kBytes);
    target.stamp(6);
    ASSERT_EQ(run(agent.transfer(mine[Range{0, 2, kBytes / 8192}], theirs[Range{0, 2, kBytes / 8192}])),
              Status::kOk)
        << last_error();
    std::vector<uint8_t> expected = stamped(kBytes, 6);
    for (uint64_t i = 0; i < kBytes; i += 8192) std::memcpy(expected.data() + i, sent.data() + i, 4096);
    ASSERT_TRUE(target.get() == expected);
    ASSERT_EQ(run(agent.transfer(theirs, mine)), Status::kOk) << last_error();
    ASSERT_EQ(std::memcmp(host.data(), expected.data(), kBytes), 0);
  }
}

TEST_P(Processes, AKilledPeerEndsTransfersAndTheGpuGoesOn) {
  GpuMemory memory(*cuda_, 0, kBytes, GetParam());
  const Agent agent("initiator", over_cuda());
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  {
    Target target(other_, kBytes, GetParam());
    const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
    const BlockList mine = agent.block_list(at(memory.address(), 4096, 0).repeat(kBytes / 4096, 4096));
    const BlockList theirs =
        peer.block_list(at(target.address(), 4096, target.gpu()).repeat(kBytes / 4096, 4096));
    const Transfer move = agent.transfer(mine, theirs, {.timeout = 10s});
    ASSERT_EQ(run(move), Status::kOk) << last_error();
    target.kill_it();
    Status status = Status::kOk;
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (status == Status::kOk && std::chrono::steady_clock::now() < until) status = run(move);
    EXPECT_TRUE(is_error(status)) << status_name(status);
    EXPECT_EQ(move.wait_fenced(Fence::kLocal, 10s), Status::kOk);
  }
  Target again(other_, kBytes, GetParam());
  const Peer peer = agent.add_peer(std::as_bytes(std::span(again.metadata())));
  const BlockList mine = agent.block_list(at(memory.address(), kBytes, 0));
  EXPECT_EQ(run(agent.transfer(mine, peer.block_list(at(again.address(), kBytes, again.gpu())))), Status::kOk)
      << last_error();
}

INSTANTIATE_TEST_SUITE_P(All, Processes, ::testing::Values(Sort::kPlain, Sort::kVmm), [](const auto& tested) {
  return tested.param == Sort::kPlain ? "cudaMalloc" : "vmm";
});

TEST_F(Gpu, AgentsOfOneProcessMoveBetweenGpusAndLeaveTheContextAlone) {
  GpuMemory left(*cuda_, 0, kBytes, Sort::kPlain);
  GpuMemory right(*cuda_, other_, kBytes, Sort::kPlain);
  left.put(stamped(kBytes, 1));
  right.put(std::vector<uint8_t>(kBytes));
  const Agent one("one", over_cuda());
  const Agent two("two", over_cuda());
  cuda_->use(other_);
  const cuda::driver::Context before = cuda_->current();
  const Region region = one.register_memory(view(left), {.access = Access::kAll});
  const Region target = two.register_memory(view(right), {.access = Access::kAll});
  const Peer peer = one.add_peer(two.metadata());
  const Transfer move = one.transfer(one.block_list(at(left.address(), 65536, 0).repeat(256, 65536)),
                                     peer.block_list(at(right.address(), 65536, other_).repeat(256, 131072)),
                                     {.notice = "moved"});
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  EXPECT_EQ(cuda_->current(), before);
  Notice notice;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (two.receive(notice) != Status::kOk && std::chrono::steady_clock::now() < until)
    (void)two.wait(100ms);
  EXPECT_EQ(notice.text(), "moved");
  const std::vector<uint8_t> sent = stamped(kBytes, 1);
  const std::vector<uint8_t> now = right.get();
  for (uint64_t i = 0; i < 256; ++i)
    ASSERT_EQ(std::memcmp(now.data() + i * 131072, sent.data() + i * 65536, 65536), 0) << i;
}

// On one GPU, memory that the application has mapped without giving the GPU access stands for another GPU's.
TEST_F(Gpu, MemoryOfThisProcessIsReachedWhicheverWayItWasMade) {
  for (const Sort sort : {Sort::kPlain, Sort::kVmm, Sort::kVmmClosed, Sort::kPool}) {
    GpuMemory left(*cuda_, 0, kBytes, Sort::kPlain);
    GpuMemory right(*cuda_, other_, kBytes, sort);
    left.put(stamped(kBytes, 3));
    const Agent one("one", over_cuda());
    const Agent two("two", over_cuda());
    const Region region = one.register_memory(view(left), {.access = Access::kAll});
    const Region target = two.register_memory(view(right), {.access = Access::kAll});
    const Peer peer = one.add_peer(two.metadata());
    const Transfer move =
        one.transfer(one.block_list(at(left.address(), 65536, 0).repeat(kBytes / 65536, 65536)),
                     peer.block_list(at(right.address(), 65536, other_).repeat(kBytes / 65536, 65536)));
    ASSERT_EQ(run(move), Status::kOk) << static_cast<int>(sort) << ": " << last_error();
    EXPECT_EQ(move.route().find("through_host_memory\": {"), std::string::npos) << move.route();
    if (sort == Sort::kVmmClosed && other_ != 0) continue;  // the GPU that it is on still has no access
    EXPECT_TRUE(right.get() == stamped(kBytes, 3)) << static_cast<int>(sort);
  }
}

// Gathered in a few blocks and sent by the copy engine, on multiprocessors of its own and on any. Pages that lie
// scattered in host memory are put there by threads.
TEST_F(Gpu, LargeListsToTheHostAreGatheredAndSent) {
  GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);
  const std::vector<uint8_t> sent = stamped(kBytes, 8);
  memory.put(sent);
  std::mt19937 random(3);
  for (const char* settings : {"beside = \"model\"\n", "beside = \"model\"\nreserved_sms = \"8\"\n"}) {
    const Agent one("one", over_cuda(std::string("[tuning.cuda]\npin = \"first\"\n") + settings));
    const Agent two("two", over_cuda("[tuning.cuda]\npin = \"first\"\n"));
    const Region region = one.register_memory(view(memory), {.access = Access::kAll});
    std::vector<std::byte> host(kBytes + 100);
    const Region target = two.register_memory(dram(host.data() + 100, kBytes), {.access = Access::kAll});
    const Peer peer = one.add_peer(two.metadata());
    for (const auto& [page, run_bytes] : {std::pair<uint64_t, uint64_t>{1000, 1 << 20},
                                          {4096, 1 << 20},
                                          {32768, 1 << 20},
                                          {1000, 1000},
                                          {32768, 32768}}) {
      const auto count = static_cast<uint32_t>(kBytes / page);
      const auto run_pages = static_cast<uint32_t>(run_bytes / page);
      std::vector<uint32_t> from(count);
      std::iota(from.begin(), from.end(), 0u);
      std::shuffle(from.begin(), from.end(), random);
      std::vector<uint32_t> to;
      for (uint32_t r = count / run_pages; r-- > 0;)
        for (uint32_t i = 0; i < run_pages; ++i) to.push_back(r * run_pages + i);
      from.resize(to.size());
      std::memset(host.data(), 0, host.size());
      const Transfer move =
          one.transfer(one.block_list(at(memory.address(), page, 0).repeat(count, page))[from],
                       peer.block_list(Blocks::at(host.data() + 100, page).repeat(count, page))[to]);
      for (int post = 0; post < 3; ++post) ASSERT_EQ(run(move), Status::kOk) << settings << last_error();
      for (size_t i = 0; i < to.size(); ++i)
        ASSERT_EQ(std::memcmp(host.data() + 100 + to[i] * page, sent.data() + from[i] * page, page), 0)
            << settings << page;
      EXPECT_NE(move.route().find("\"gathered\""), std::string::npos) << move.route();
      const bool reserved = std::string(settings).find("reserved") != std::string::npos;
      EXPECT_EQ(move.route().find("\"reserved_sms\":8") != std::string::npos, reserved) << move.route();
    }
  }
}

// Pinned by this process, each beginning and ending within a page; by the kernel and by the copy engine.
TEST_F(Gpu, RegionsThatShareAPageAreBothPinnedAndMoved) {
  constexpr uint64_t kPart = kBytes / 4;
  GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);
  std::vector<std::byte> host(kBytes);
  const std::vector<uint8_t> sent = stamped(kBytes, 4);
  std::memcpy(host.data(), sent.data(), kBytes);
  for (const char* engine : {"1GiB", "64KiB"}) {
    const Agent one("one", over_cuda(std::string("[tuning.cuda]\npin = \"first\"\ncopy_engine_bytes = \"") +
                                     engine + "\"\n"));
    const Agent two("two", over_cuda());
    const Region target = two.register_memory(view(memory), {.access = Access::kAll});
    const Peer peer = one.add_peer(two.metadata());
    std::vector<Region> regions;
    for (uint64_t i = 0; i < 3; ++i) {
      std::byte* const begin = host.data() + 100 + i * kPart;
      memory.put(std::vector<uint8_t>(kBytes));
      regions.push_back(one.register_memory(dram(begin, kPart), {.access = Access::kAll}));
      const Transfer move = one.transfer(one.block_list(Blocks::at(begin, kPart)),
                                         peer.block_list(at(memory.address(), kPart, 0)));
      ASSERT_EQ(run(move), Status::kOk) << engine << i << ": " << last_error();
      EXPECT_EQ(move.route().find("have pinned a part"), std::string::npos) << move.route();
      EXPECT_EQ(std::memcmp(memory.get().data(), begin, kPart), 0) << engine << i;
    }
  }
}

// Each agent's memory is cut into as many parts as there are GPUs: part i is written by agent i, its own is
// what it sends. One GPU writes to another agent's memory on itself.
TEST_F(Gpu, EveryGpuWritesToEveryOtherAtOnce) {
  const uint32_t sides = std::max(cuda_->gpus(), 2u);
  constexpr uint64_t kPage = 32768;
  const uint64_t part = kBytes / sides / kPage * kPage;
  std::vector<std::unique_ptr<GpuMemory>> memory;
  std::vector<std::unique_ptr<Agent>> agents;
  std::vector<std::unique_ptr<Region>> regions;
  for (uint32_t i = 0; i < sides; ++i) {
    memory.push_back(std::make_unique<GpuMemory>(*cuda_, i % cuda_->gpus(), kBytes, Sort::kPlain));
    memory.back()->put(stamped(kBytes, i));
    agents.push_back(std::make_unique<Agent>("gpu-" + std::to_string(i), over_cuda()));
    regions.push_back(std::make_unique<Region>(
        agents.back()->register_memory(view(*memory.back()), {.access = Access::kAll})));
  }
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<Transfer> moves;
  for (uint32_t i = 0; i < sides; ++i) {
    for (uint32_t j = 0; j < sides; ++j) {
      if (i == j) continue;
      peers.push_back(std::make_unique<Peer>(agents[i]->add_peer(agents[j]->metadata())));
      const auto pages = [&](const GpuMemory& side) {
        return at(side.address() + i * part, kPage, side.gpu()).repeat(part / kPage, kPage);
      };
      moves.push_back(agents[i]->transfer(agents[i]->block_list(pages(*memory[i])),
                                          peers.back()->block_list(pages(*memory[j]))));
    }
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<Status> status;
    for (const Transfer& move : moves) status.push_back(move.post());
    for (size_t i = 0; i < moves.size(); ++i)
      ASSERT_EQ(status[i] == Status::kInProgress ? moves[i].wait(60s) : status[i], Status::kOk)
          << last_error();
  }
  for (uint32_t j = 0; j < sides; ++j) {
    const std::vector<uint8_t> now = memory[j]->get();
    for (uint32_t i = 0; i < sides; ++i) {
      const std::vector<uint8_t> sent = stamped(kBytes, i);
      ASSERT_EQ(std::memcmp(now.data() + i * part, sent.data() + i * part, part), 0) << i << " to " << j;
    }
  }
  peers.clear();
}

TEST_F(Gpu, ACopyCanBeOrderedAfterTheDefaultStream) {
  constexpr uint64_t kLarge = uint64_t{1} << 30;
  GpuMemory left(*cuda_, 0, kLarge, Sort::kPlain);
  GpuMemory right(*cuda_, other_, kLarge, Sort::kPlain);
  const Agent one("one", over_cuda("[cuda]\nafter_default_stream = \"true\"\n"));
  const Agent two("two", over_cuda());
  const Region region = one.register_memory(view(left), {.access = Access::kAll});
  const Region target = two.register_memory(view(right), {.access = Access::kAll});
  const Peer peer = one.add_peer(two.metadata());
  const Transfer move = one.transfer(one.block_list(at(left.address(), kLarge, 0)),
                                     peer.block_list(at(right.address(), kLarge, other_)));
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  const auto& api = cuda_->api();
  cuda_->use(0);
  for (unsigned round = 1; round <= 3; ++round) {
    // Each of these takes a while, and none is waited for.
    for (unsigned step = 0; step < 50; ++step)
      api.check(api.memory_set32(left.address(), round * 1000 + step, kLarge / 4), "cuMemsetD32");
    ASSERT_EQ(run(move), Status::kOk) << last_error();
    const std::vector<uint8_t> now = right.get();
    for (uint64_t i = 0; i < kLarge; i += 4096) {
      uint32_t word = 0;
      std::memcpy(&word, now.data() + i, sizeof word);
      ASSERT_EQ(word, round * 1000 + 49) << i;
    }
    cuda_->use(0);
  }
}

TEST_F(Gpu, WhatIsNoGpuMemoryIsRefusedClearly) {
  cuda_->use(0);
  const Agent agent("agent", over_cuda());
  std::vector<std::byte> host(4096);
  const auto refusal = [&](MemoryView view) -> std::string {
    try {
      const Region region = agent.register_memory(view, {.access = Access::kAll});
      return "taken";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_NE(refusal({.address = host.data(), .bytes = 4096, .kind = Kind::kVram}).find("registered as dram"),
            std::string::npos);
  uint64_t gone = 0;
  {
    GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);
    gone = memory.address();
    EXPECT_NE(refusal({.address = memory.pointer(), .bytes = kBytes, .kind = Kind::kVram, .device = 99})
                  .find("no GPU 99"),
              std::string::npos);
    EXPECT_NE(refusal({.address = memory.pointer(), .bytes = kBytes * 64, .kind = Kind::kVram}), "taken");
    if (other_ != 0) {
      EXPECT_NE(refusal({.address = memory.pointer(), .bytes = kBytes, .kind = Kind::kVram, .device = other_})
                    .find("lies on GPU 0"),
                std::string::npos);
    }
  }
  EXPECT_NE(refusal({.address = reinterpret_cast<void*>(gone), .bytes = kBytes, .kind = Kind::kVram})
                .find("no GPU memory"),
            std::string::npos);
}

}  // namespace
}  // namespace towline::gpu_test

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--target") return towline::gpu_test::Target::serve(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

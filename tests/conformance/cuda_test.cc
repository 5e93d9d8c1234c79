// The cuda transport on GPUs made of host memory: bad memory, bad GPUs, bad days.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <thread>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

// The abstract sockets that an agent listens at, to be connected to. Their names end with its incarnation's second half.
std::vector<sockaddr_un> sockets_of(const Agent& agent) {
  const std::string ending(agent.incarnation().substr(16));
  std::vector<sockaddr_un> found;
  std::ifstream all("/proc/net/unix");
  for (std::string line; std::getline(all, line);) {
    const size_t name = line.find('@');
    if (name == line.npos || !line.ends_with(ending) || line.find(" 00010000 ") == line.npos) continue;
    sockaddr_un& address = found.emplace_back();
    address.sun_family = AF_UNIX;
    line.copy(address.sun_path + 1, sizeof address.sun_path - 1, name + 1);
  }
  return found;
}

void connect_to(int socket, const sockaddr_un& name) {
  const size_t bytes = offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name.sun_path + 1);
  EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&name), static_cast<socklen_t>(bytes)), 0)
      << errno;
}

// The driver would load them in the first copy once no kernel runs, and one may be waiting for that copy.
TEST_F(CudaTest, KernelsAreLoadedWhereMemoryIsRegistered) {
  const uint64_t memory = reinterpret_cast<uint64_t>(right_memory_.data());
  gpu("place", memory, right_memory_.size(), 1);
  EXPECT_FALSE(command_("loaded", 1, 0, 0));
  const Region region = right_->register_memory(vram(right_memory_, 1), {.access = Access::kAll});
  EXPECT_TRUE(command_("loaded", 1, 0, 0));
}

TEST_F(CudaTest, MemoryOnAnotherGpuOrOnNoneIsRefusedClearly) {
  const auto refusal = [&](const MemoryView& view) {
    return text_of([&] { (void)left_->register_memory(view, {.access = Access::kAll}); });
  };
  EXPECT_NE(refusal(vram(left_memory_, 7)).find("there is no GPU 7"), std::string::npos);
  EXPECT_NE(refusal(vram(left_memory_, 1)).find("lies on GPU 0"), std::string::npos);
  gpu("forget", reinterpret_cast<uint64_t>(left_memory_.data()) + kPage, kPage);
  EXPECT_NE(refusal({.address = left_memory_.data() + kPage, .bytes = kPage, .kind = Kind::kVram})
                .find("no GPU memory"),
            std::string::npos);
}

TEST_F(CudaTest, MemoryTakenAwayUnderARegionIsFoundBeforeItIsUsed) {
  const Region here = left_->register_memory(vram(left_memory_), {.access = Access::kAll});
  const Region there = right_->register_memory(vram(right_memory_), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  gpu("forget", reinterpret_cast<uint64_t>(right_memory_.data()), right_memory_.size());
  const auto attempt = [&] {
    (void)left_->transfer(left_->block_list(pages(left_memory_)), peer.block_list(pages(right_memory_)));
  };
  EXPECT_NE(text_of(attempt).find("the owner says: cuda: no GPU memory"), std::string::npos)
      << text_of(attempt);
  gpu("reset");
  gpu("forget", reinterpret_cast<uint64_t>(left_memory_.data()), left_memory_.size());
  EXPECT_NE(text_of(attempt).find("any more"), std::string::npos) << text_of(attempt);
  gpu("reset");
  EXPECT_EQ(text_of(attempt), "it went well");
}

TEST_F(CudaTest, ARegionOverSeveralAllocationsIsMappedAsOne) {
  constexpr uint64_t kPart = 16 * kPage;
  constexpr uint64_t kParts = 3;
  void* const range = mmap(nullptr, kPart * kParts, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(range, MAP_FAILED);
  for (uint64_t i = 0; i < kParts; ++i) {
    const int fd = memfd_create("part", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(fd, kPart), 0);
    ASSERT_NE(mmap(static_cast<std::byte*>(range) + i * kPart, kPart, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, fd, 0),
              MAP_FAILED);
    close(fd);
  }
  auto* const data = static_cast<std::byte*>(range) + 5 * kPage;  // neither end is an allocation's
  constexpr uint64_t kBytes = kPart * kParts - 9 * kPage;
  {
    stamp(left_memory_.data(), left_memory_.size(), 3);
    const Region here = left_->register_memory(vram(left_memory_), {.access = Access::kAll});
    const Region there = right_->register_memory({.address = data, .bytes = kBytes, .kind = Kind::kVram},
                                                 {.access = Access::kAll});
    const Peer peer = left_->add_peer(right_->metadata());
    const Transfer move =
        left_->transfer(left_->block_list(Blocks::at(left_memory_.data(), kBytes, Kind::kVram)),
                        peer.block_list(Blocks::at(data, kBytes, Kind::kVram)));
    ASSERT_EQ(run(move), Status::kOk) << last_error();
    EXPECT_EQ(std::memcmp(data, left_memory_.data(), kBytes), 0);
    EXPECT_NE(move.route().find("VMM descriptor"), std::string::npos) << move.route();
  }
  munmap(range, kPart * kParts);
}

TEST_F(CudaTest, PlainHostMemoryIsPinnedForTheGpu) {
  const Region there = right_->register_memory(vram(right_memory_), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  const Buffer host(kPage * kPages, false);
  stamp(host.data(), host.size(), 4);
  const Region here = left_->register_memory(dram(host.data(), host.size()), {.access = Access::kAll});
  ASSERT_EQ(run(left_->transfer(left_->block_list(blocks_of(host.data(), host.size(), kPage)),
                                peer.block_list(pages(right_memory_)))),
            Status::kOk)
      << last_error();
  EXPECT_EQ(std::memcmp(host.data(), right_memory_.data(), host.size()), 0);
}

TEST_F(CudaTest, ALaunchThatIsRefusedEndsOnlyItsTransfer) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  gpu("refuse", 1, 701);
  EXPECT_EQ(run(move), Status::kIo);
  // After a failure the outcome comes before the fence, and only then may it be posted again.
  ASSERT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(run(move), Status::kOk) << last_error();
}

TEST_F(CudaTest, ABrokenGpuIsNoticedAndNamed) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  gpu("break", 700);
  EXPECT_EQ(run(move), Status::kIo);
  const Result result = move.result();
  EXPECT_EQ(result.bytes, 0u);
  ASSERT_EQ(result.failed_ranges, 1u);
  EXPECT_EQ(result.failed[0].vendor_code, 700);
  EXPECT_EQ(result.failed[0].count, kPages);
}

TEST_F(CudaTest, TheFenceWaitsForACopyThatCannotBeCalledBack) {
  ASSERT_EQ(run(make_move()), Status::kOk) << last_error();  // connected
  const Transfer move = left_->transfer(left_->block_list(pages(left_memory_)),
                                        peer_->block_list(pages(right_memory_)), {.timeout = 1s});
  stamp(left_memory_.data(), left_memory_.size(), 6);
  gpu("hold", 1);
  EXPECT_EQ(run(move), Status::kTimedOut);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 1ms), Status::kNotYet);
  EXPECT_EQ(move.post(), Status::kBusy);
  gpu("hold", 0);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(std::memcmp(right_memory_.data(), left_memory_.data(), right_memory_.size()), 0);
  EXPECT_EQ(move.poll(), Status::kTimedOut) << "an outcome never changes";
}

TEST_F(CudaTest, WhatIsUnderWayIsBoundedAndAllOfItEnds) {
  const Transfer first = make_move();
  ASSERT_EQ(run(first), Status::kOk) << last_error();
  std::vector<Transfer> moves;
  for (uint32_t i = 0; i < 300; ++i)
    moves.push_back(left_->transfer(left_->block_list(pages(left_memory_))[Range{i % kPages, 1, 1}],
                                    peer_->block_list(pages(right_memory_))[Range{i % kPages, 1, 1}]));
  gpu("hold", 1);
  std::vector<Status> posted;
  for (const Transfer& move : moves) posted.push_back(move.post());
  gpu("hold", 0);
  uint32_t taken = 0;
  for (size_t i = 0; i < moves.size(); ++i) {
    if (posted[i] != Status::kInProgress) {
      EXPECT_EQ(posted[i], Status::kAgain) << i;
      continue;
    }
    ++taken;
    EXPECT_EQ(moves[i].wait(20s), Status::kOk) << i;
  }
  EXPECT_GE(taken, 200u);
}

TEST_F(CudaTest, AnAgentThatEndsWaitsForWhatItsGpuWrites) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  stamp(left_memory_.data(), left_memory_.size(), 7);
  gpu("hold", 1);
  ASSERT_EQ(move.post(), Status::kInProgress);
  std::thread letting_go([&] { gpu("hold", 0); });
  move.cancel();
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  letting_go.join();
}

// Both GPUs are this process's, and the memory is used as it lies.
TEST_F(CudaTest, AnotherGpusMemoryIsReachedWhicheverWayItWasMade) {
  const auto agent = [](const char* name) {
    return Agent(name, {.listen = "none",
                        .backends = "cuda",
                        .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n",
                        .default_timeout = 20s});
  };
  for (const char* made : {"make plain", "make mapped", "make pool", "make readable"}) {
    gpu("reset");
    gpu(made, reinterpret_cast<uint64_t>(right_memory_.data()), right_memory_.size());
    gpu("place", reinterpret_cast<uint64_t>(right_memory_.data()), right_memory_.size(), 1);
    stamp(left_memory_.data(), left_memory_.size(), 9);
    std::memset(right_memory_.data(), 0, right_memory_.size());
    const Agent one = agent("one");
    const Agent two = agent("two");
    const Region here = one.register_memory(vram(left_memory_), {.access = Access::kAll});
    const Region there = two.register_memory(vram(right_memory_, 1), {.access = Access::kAll});
    const Peer peer = one.add_peer(two.metadata());
    const Transfer move =
        one.transfer(one.block_list(pages(left_memory_)), peer.block_list(pages(right_memory_, 1)));
    EXPECT_EQ(run(move), Status::kOk) << made << ": " << last_error();
    EXPECT_EQ(std::memcmp(left_memory_.data(), right_memory_.data(), right_memory_.size()), 0) << made;
    const bool narrowed = std::string(made) == "make readable";
    EXPECT_EQ(move.route().find("lets GPU 0 only read") != std::string::npos, narrowed) << move.route();
  }
}

// The copy engine takes what was pinned in one piece.
TEST_F(CudaTest, RegionsThatShareAPageAreBothPinnedAndMoved) {
  constexpr uint64_t kBytes = 6 * kPage;
  const Buffer host(4 * kBytes, false);
  const Region there = right_->register_memory(vram(right_memory_), {.access = Access::kAll});
  for (const char* engine : {"copy_engine_bytes = \"1GiB\"\n", "copy_engine_bytes = \"4KiB\"\n"}) {
    restart(engine);
    const Peer peer = left_->add_peer(right_->metadata());
    stamp(host.data(), host.size(), 8);
    std::vector<Region> regions;
    std::vector<Transfer> moves;
    for (uint64_t i = 0; i < 3; ++i) {  // each begins and ends within a page
      std::byte* const at = host.data() + 100 + i * kBytes;
      regions.push_back(left_->register_memory(dram(at, kBytes), {.access = Access::kAll}));
      std::memset(right_memory_.data(), 0, right_memory_.size());
      moves.push_back(
          left_->transfer(left_->block_list(Blocks::at(at, kBytes)),
                          peer.block_list(Blocks::at(right_memory_.data(), kBytes, Kind::kVram))));
      ASSERT_EQ(run(moves.back()), Status::kOk) << engine << i << ": " << last_error();
      ASSERT_EQ(moves.back().route().find("have pinned a part"), std::string::npos) << moves.back().route();
      ASSERT_EQ(std::memcmp(right_memory_.data(), at, kBytes), 0) << engine << i;
    }
    moves.erase(moves.begin());
    regions.erase(regions.begin());  // the neighbour's page stays
    EXPECT_EQ(run(moves.front()), Status::kOk) << last_error();
  }
}

TEST_F(CudaTest, VisitorsThatSayNothingAreBoundedInNumberAndKeepNobodyOut) {
  std::vector<int> silent;
  for (const sockaddr_un& name : sockets_of(*right_)) {
    for (int i = 0; i < 100; ++i) {
      silent.push_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      connect_to(silent.back(), name);
    }
  }
  ASSERT_GE(silent.size(), 200u) << "messages and memory";
  EXPECT_EQ(run(make_move()), Status::kOk) << last_error();
  for (size_t first = 0; first < silent.size(); first += 100) {
    pollfd oldest{silent[first], POLLRDHUP, 0};
    EXPECT_EQ(::poll(&oldest, 1, 20000), 1) << "the oldest of 100 is still there";
  }
  for (const int visitor : silent) ::close(visitor);
}

TEST_F(CudaTest, WhoAsksForMemoryWhenDescriptorsHaveRunOutIsTurnedAway) {
  const std::vector<sockaddr_un> names = sockets_of(*right_);
  ASSERT_GE(names.size(), 2u) << "messages and memory";
  std::vector<pollfd> visitors;
  for (size_t i = 0; i < names.size(); ++i)
    visitors.push_back({::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), POLLRDHUP, 0});
  const int lowest = ::dup(visitors[0].fd);
  ::close(lowest);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit full{static_cast<rlim_t>(lowest), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &full);
  for (size_t i = 0; i < names.size(); ++i) {
    connect_to(visitors[i].fd, names[i]);
    EXPECT_EQ(::poll(&visitors[i], 1, 3000), 1) << names[i].sun_path + 1;
  }
  setrlimit(RLIMIT_NOFILE, &before);
  for (const pollfd& visitor : visitors) ::close(visitor.fd);
  EXPECT_EQ(run(make_move()), Status::kOk) << last_error();
}

TEST_F(CudaTest, BadSettingsAreNamed) {
  for (const auto& [setting, wanted] :
       {std::pair{"blocks = \"0\"\n", "tuning.cuda.blocks"},
        {"[cuda]\ngpu = \"x\"\n", "cuda.gpu"},
        {"through_host = \"maybe\"\n", "tuning.cuda.through_host"},
        {"pin = \"yes\"\n", "tuning.cuda.pin"},
        {"beside = \"me\"\n", "tuning.cuda.beside"},
        {"reserved_sms = \"-8\"\n", "tuning.cuda.reserved_sms"},
        {"reserved_sms = \"8\"\napplication_sms = \"120\"\n", "tuning.cuda.application_sms"},
        {"reserved_sms = \"8\"\ngreen_context = \"7\"\n", "tuning.cuda.green_context"},
        {"green_context = \"0xyz\"\n", "tuning.cuda.green_context"},
        {"host_threads = \"-1\"\n", "tuning.cuda.host_threads"},
        {"copy_engine_bytes = \"many\"\n", "tuning.cuda.copy_engine_bytes"}}) {
    try {
      const Agent agent("agent", options(setting));
      ADD_FAILURE() << setting << "was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace towline::conformance

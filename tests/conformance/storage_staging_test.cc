// Between a peer's memory and our own files, in one transfer through staging memory: over every transport, to
// and from files of each sort.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <set>
#include <string_view>
#include <thread>

#include "storage_fixture.h"
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

// SmallArray and small chunks, so that every transfer here takes many turns through them.
constexpr const char* kSmallChunks = "[tuning.staging]\nchunk = \"64KiB\"\ndepth = 3\nbytes = \"400KiB\"\n";
constexpr uint64_t kLimit = 400 << 10;

struct Way {
  std::string name;
  Transport transport;
  Store store;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

// The sorts of transports with a plain file, and the sorts of files with one transport.
std::vector<Way> ways() {
  std::vector<Way> all;
  for (const Transport& transport : kTransports) {
    const std::string name = transport.name;
    if (name == "memory" || name == "memory_framed" || name == "shm_ring" || name == "shm" || name == "tcp" ||
        name == "cuda_mapped" || name == "tcp_gpu")
      all.push_back({name + "_auto", transport, kStores[0]});
    if (name != "tcp") continue;
    for (const Store& store : stores()) {
      const std::string kind = store.name;
      if (kind == "threads" || kind == "auto_direct") all.push_back({"tcp_" + kind, transport, store});
    }
  }
  return all;
}

class StagingTest : public ::testing::TestWithParam<Way> {
 protected:
  static constexpr uint64_t kBytes = 4 << 20;
  static constexpr uint64_t kPage = 4096;
  static constexpr uint32_t kPages = kBytes / kPage;

  void SetUp() override { start({}); }

  void start(AgentOptions mine) {
    const Way& way = GetParam();
    TearDown();
    AgentOptions theirs;
    for (AgentOptions* options : {&mine, &theirs}) {
      options->listen = "127.0.0.1:0";
      options->config += way.transport.config;
      options->default_timeout = 60s;
    }
    mine.backends = std::string(way.transport.backends) + ",posix";
    mine.config += std::string(way.store.config) + kSmallChunks;
    theirs.backends = way.transport.backends;
    memory_ = std::make_unique<Buffer>(kBytes, way.transport.shared_memory);
    owner_ = std::make_unique<Agent>("owner", theirs);
    agent_ = std::make_unique<Agent>("stager", mine);
    region_ = std::make_unique<Region>(owner_->register_memory(
        {.address = memory_->data(), .bytes = kBytes, .kind = GetParam().transport.kind},
        {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(agent_->add_peer(owner_->metadata()));
  }
  // The stager first: a caller-driven one would not detach from the peer's memory when asked.
  void TearDown() override {
    peer_.reset();
    agent_.reset();
    region_.reset();
    owner_.reset();
  }

  [[nodiscard]] Region open(const std::string& name, StorageOptions options = {}) {
    options.direct = GetParam().store.direct;
    return agent_->register_storage(folder_.uri(name), options);
  }
  void make_file(const std::string& name, uint64_t bytes, uint64_t seed) {
    std::vector<std::byte> contents(bytes);
    stamp_bytes(contents.data(), bytes, seed);
    folder_.put(name, contents);
  }
  [[nodiscard]] BlockList in_file(const Region& file, uint64_t offset, uint64_t bytes) {
    return agent_->block_list(file.blocks(offset, bytes));
  }
  [[nodiscard]] Blocks at(uint64_t offset, uint64_t bytes) const {
    return Blocks::at(memory_->data() + offset, bytes, GetParam().transport.kind);
  }
  [[nodiscard]] BlockList in_peer(uint64_t offset, uint64_t bytes) {
    return peer_->block_list(at(offset, bytes));
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(60s) : posted;
  }
  // Cached data needs no staging memory on the way to mapped memory.
  [[nodiscard]] static bool goes_straight() {
    const Transport& transport = GetParam().transport;
    return transport.shared_memory && transport.kind == Kind::kDram && !GetParam().store.direct;
  }
  // The bytes of its last post that went straight; -1: that way does not exist.
  static int64_t straight_bytes(const Transfer& transfer) {
    constexpr std::string_view kBegin = "\"straight\":{\"bytes\":";
    const std::string route = transfer.route();
    const size_t at = route.find(kBegin);
    return at == std::string::npos ? -1 : std::stoll(route.substr(at + kBegin.size()));
  }
  static std::string next_notice(const Agent& agent) {
    Notice notice;
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (agent.receive(notice) != Status::kOk && std::chrono::steady_clock::now() < until)
      (void)agent.wait(100ms);
    return std::string(notice.text());
  }

  FolderPlace folder_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Agent> owner_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<Peer> peer_;
};

INSTANTIATE_TEST_SUITE_P(All, StagingTest, ::testing::ValuesIn(ways()),
                         [](const auto& way) { return way.param.name; });

TEST_P(StagingTest, APlanTellsOfItsRouteWhilePostsMakeTheirLegs) {
  const Region file = open("told", {.create = true, .bytes = kBytes});
  const Plan plan = agent_->plan(in_peer(0, kBytes), in_file(file, 0, kBytes));
  constexpr std::array<uint32_t, 1> kWhole = {0};
  std::atomic<bool> over{false};
  std::thread asking([&] {
    while (!over) {
      EXPECT_NE(plan.route().find("\"legs\""), std::string::npos);
      std::this_thread::yield();  // posts come first where processors are few
    }
  });
  for (int round = 0; round < 20; ++round) {
    const Post save = plan.post({.from = kWhole, .to = kWhole});
    EXPECT_EQ(save.wait(60s), Status::kOk) << save.error();
  }
  over = true;
  asking.join();
}

// Threads have workers of their own; the legs are made anew for each post, and move under the lock of the post's.
TEST_P(StagingTest, LegsHaveTheWorkerOfTheirPostWhicheverThreadPosts) {
  start({.workers = 2});
  const Region file = open("by_threads", {.create = true, .bytes = kBytes});
  const Plan plan = agent_->plan(in_peer(0, kBytes), in_file(file, 0, kBytes));
  constexpr std::array<uint32_t, 1> kWhole = {0};
  std::set<std::string> workers;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    stamp_bytes(memory_->data(), kBytes, 50 + thread);
    std::thread([&] {
      const Post save = plan.post({.from = kWhole, .to = kWhole});
      EXPECT_EQ(save.wait(60s), Status::kOk) << save.error();
    }).join();
    EXPECT_EQ(first_difference(folder_.get("by_threads").data(), kBytes, 50 + thread), kBytes);
    const std::string route = plan.route();
    constexpr std::string_view kWorker = "\"worker\":";
    for (size_t at = route.find(kWorker); at != std::string::npos; at = route.find(kWorker, at + 1))
      workers.insert(route.substr(at + kWorker.size(), 1));
  }
  EXPECT_EQ(workers.size(), 1u);
}

TEST_P(StagingTest, WholeMemoryOfAPeerGoesToAFileAndComesBack) {
  const Region file = open("whole", {.create = true, .bytes = kBytes});
  stamp_bytes(memory_->data(), kBytes, 1);
  const Transfer save = agent_->transfer(in_peer(0, kBytes), in_file(file, 0, kBytes));
  ASSERT_EQ(run(save), Status::kOk);
  EXPECT_EQ(save.result().bytes, kBytes);
  const std::vector<std::byte> contents = folder_.get("whole");
  ASSERT_EQ(contents.size(), kBytes);
  EXPECT_EQ(first_difference(contents.data(), kBytes, 1), kBytes);
  std::memset(memory_->data(), 0, kBytes);
  ASSERT_EQ(run(agent_->transfer(in_file(file, 0, kBytes), in_peer(0, kBytes))), Status::kOk);
  EXPECT_EQ(first_difference(memory_->data(), kBytes, 1), kBytes);
}

TEST_P(StagingTest, PickedPagesGoWhereTheyBelong) {
  make_file("pages", kBytes, 3);
  const Region file = open("pages", {.access = Access::kAll});
  const BlockList ours = agent_->block_list(file.blocks(0, kPage).repeat(kPages, kPage));
  const BlockList theirs = peer_->block_list(at(0, kPage).repeat(kPages, kPage));
  std::vector<uint32_t> from(kPages);
  std::iota(from.begin(), from.end(), 0u);
  std::shuffle(from.begin(), from.end(), std::mt19937(11));
  from.resize(kPages - 57);
  const std::vector<uint32_t> to(from.rbegin(), from.rend());
  ASSERT_EQ(run(agent_->transfer(ours[from], theirs[to])), Status::kOk);
  for (size_t i = 0; i < from.size(); ++i)
    ASSERT_EQ(first_difference(memory_->data() + to[i] * kPage, kPage, 3, from[i] * kPage), kPage) << i;
  stamp_bytes(memory_->data(), kBytes, 4);
  ASSERT_EQ(run(agent_->transfer(theirs[from], ours[to])), Status::kOk);
  const std::vector<std::byte> contents = folder_.get("pages");
  for (size_t i = 0; i < from.size(); ++i)
    ASSERT_EQ(first_difference(contents.data() + to[i] * kPage, kPage, 4, from[i] * kPage), kPage) << i;
}

TEST_P(StagingTest, BlocksOfUnequalSizesAndOddLengthsPairUp) {
  // 3 pages of memory a block of the file; and what is no multiple of anything.
  make_file("unequal", kBytes, 5);
  const Region file = open("unequal", {.access = Access::kAll});
  constexpr uint64_t kThree = 3 * kPage;
  const BlockList ours = agent_->block_list(file.blocks(100, kThree).repeat(300, kThree + 11));
  const BlockList theirs = peer_->block_list(at(0, kPage).repeat(900, kPage));
  ASSERT_EQ(run(agent_->transfer(ours, theirs)), Status::kOk);
  for (uint64_t i = 0; i < 300; ++i)
    ASSERT_EQ(first_difference(memory_->data() + i * kThree, kThree, 5, 100 + i * (kThree + 11)), kThree)
        << i;
  std::vector<Blocks> odd_file;
  std::vector<Blocks> odd_memory;
  uint64_t in_file_at = 77;
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t bytes = 1 + i * 97;
    odd_file.push_back(file.blocks(in_file_at, bytes));
    odd_memory.push_back(at((199 - i) * 20000, bytes));
    stamp_bytes(memory_->data() + (199 - i) * 20000, bytes, 6, in_file_at);
    in_file_at += bytes;
  }
  ASSERT_EQ(run(agent_->transfer(peer_->block_list(odd_memory), agent_->block_list(odd_file))), Status::kOk);
  const std::vector<std::byte> contents = folder_.get("unequal");
  EXPECT_EQ(first_difference(contents.data(), 77, 5), 77u);
  EXPECT_EQ(first_difference(contents.data() + 77, in_file_at - 77, 6, 77), in_file_at - 77);
  EXPECT_EQ(first_difference(contents.data() + in_file_at, 1000, 5, in_file_at), 1000u);
}

TEST_P(StagingTest, SeveralFilesInOneTransfer) {
  constexpr uint64_t kEach = 300000;
  std::vector<Region> files;
  std::vector<Blocks> ours;
  for (uint64_t i = 0; i < 5; ++i) {
    make_file("several" + std::to_string(i), kEach, 20 + i);
    files.push_back(open("several" + std::to_string(i)));
    ours.push_back(files.back().blocks(0, kEach));
  }
  const BlockList theirs = peer_->block_list(at(0, kEach).repeat(5, kEach));
  ASSERT_EQ(run(agent_->transfer(agent_->block_list(ours), theirs)), Status::kOk);
  for (uint64_t i = 0; i < 5; ++i)
    EXPECT_EQ(first_difference(memory_->data() + i * kEach, kEach, 20 + i), kEach) << i;
}

TEST_P(StagingTest, FileToFileGoesThroughStagingToo) {
  make_file("source", kBytes, 8);
  const Region source = open("source");
  const Region copy = open("copy", {.create = true, .bytes = kBytes});
  const Transfer move = agent_->transfer(in_file(source, 0, kBytes - 1), in_file(copy, 1, kBytes - 1));
  ASSERT_EQ(run(move), Status::kOk);
  EXPECT_EQ(first_difference(folder_.get("copy").data() + 1, kBytes - 1, 8), kBytes - 1);
}

TEST_P(StagingTest, NoticesFollowTheBytesOnTheFarSide) {
  make_file("noticed", kBytes, 9);
  const Region file = open("noticed", {.access = Access::kAll});
  const Transfer load = agent_->transfer(in_file(file, 0, kBytes), in_peer(0, kBytes), {.notice = "loaded"});
  for (int round = 0; round < 3; ++round) {
    std::memset(memory_->data(), 0, kBytes);
    ASSERT_FALSE(is_error(load.post()));
    ASSERT_EQ(next_notice(*owner_), "loaded");
    EXPECT_EQ(first_difference(memory_->data(), kBytes, 9), kBytes);
    ASSERT_EQ(load.wait(60s), Status::kOk);
  }
  stamp_bytes(memory_->data(), kBytes, 10);
  const Transfer save = agent_->transfer(in_peer(0, kBytes), in_file(file, 0, kBytes), {.notice = "saved"});
  ASSERT_FALSE(is_error(save.post()));
  ASSERT_EQ(next_notice(*owner_), "saved");
  EXPECT_EQ(first_difference(folder_.get("noticed").data(), kBytes, 10), kBytes);
}

TEST_P(StagingTest, MoreTransfersThanThePoolHasRoomForTakeTurns) {
  constexpr uint64_t kThreads = 6;
  constexpr uint64_t kEach = kBytes / kThreads / kPage * kPage;
  make_file("turns", kBytes, 12);
  const Region file = open("turns");
  const auto two_sets = [&] {  // below the limit
    return agent_->info().find("\"staging\":{\"bytes\":393216") != std::string::npos;
  };
  // On a busy machine a round's transfers may come one after the other.
  for (int round = 0; round < 20 && !two_sets(); ++round) {
    std::vector<std::thread> threads;
    std::vector<Status> outcomes(kThreads, Status::kInternal);
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const Transfer load = agent_->transfer(in_file(file, t * kEach, kEach), in_peer(t * kEach, kEach));
        for (int i = 0; i < 4; ++i) {
          outcomes[t] = run(load);
          if (outcomes[t] != Status::kOk) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status outcome : outcomes) ASSERT_EQ(outcome, Status::kOk);
    ASSERT_EQ(first_difference(memory_->data(), kThreads * kEach, 12), kThreads * kEach);
  }
  EXPECT_TRUE(two_sets()) << agent_->info();
  static_assert(393216 <= kLimit);
}

TEST_P(StagingTest, TheMemoryInBetweenIsNotForPeers) {
  const Region file = open("private", {.create = true, .bytes = kBytes});
  const size_t before = agent_->info().find("\"regions\"");
  ASSERT_EQ(run(agent_->transfer(in_peer(0, kBytes), in_file(file, 0, kBytes))), Status::kOk);
  ASSERT_NE(before, std::string::npos);
  const Peer stager = owner_->add_peer(agent_->metadata());
  EXPECT_TRUE(stager.regions().empty());
}

TEST_P(StagingTest, RouteSaysThroughWhatAndWhy) {
  const Region file = open("route", {.create = true, .bytes = kBytes});
  const Transfer save = agent_->transfer(in_peer(0, kBytes), in_file(file, 0, kBytes));
  const std::string way = GetParam().transport.backend() + " then posix";
  EXPECT_NE(save.route().find("staged through 0.1875 MiB: " + way), std::string::npos) << save.route();
  const Transfer load = agent_->transfer(in_file(file, 0, 10), in_peer(0, 10));
  EXPECT_NE(load.route().find("posix then " + GetParam().transport.backend()), std::string::npos)
      << load.route();
  EXPECT_NE(load.route().find("\"legs\""), std::string::npos);
  for (const std::string& forced : {std::string("posix"), GetParam().transport.backend()}) {
    const Transfer one = agent_->transfer(in_file(file, 0, 10), in_peer(0, 10), {.backend = forced});
    EXPECT_EQ(run(agent_->transfer(in_peer(0, 10), in_file(file, 0, 10))), Status::kOk);
  }
  EXPECT_THROW((void)agent_->transfer(in_file(file, 0, 10), in_peer(0, 10), {.backend = "none"}), Error);
}

TEST_P(StagingTest, WhatIsCachedGoesStraightIntoMappedMemory) {
  make_file("straight", kBytes, 21);
  const Region file = open("straight", {.access = Access::kAll});
  const Transfer load = agent_->transfer(in_file(file, 0, kBytes), in_peer(0, kBytes));
  const Transfer save = agent_->transfer(in_peer(0, kBytes), in_file(file, 0, kBytes));
  for (int round = 0; round < 3; ++round) {
    std::memset(memory_->data(), 0, kBytes);
    ASSERT_EQ(run(load), Status::kOk);
    EXPECT_EQ(first_difference(memory_->data(), kBytes, 21), kBytes);
    EXPECT_EQ(load.result().bytes, kBytes);
    EXPECT_EQ(straight_bytes(load), goes_straight() ? int64_t{kBytes} : -1);
  }
  EXPECT_EQ(straight_bytes(save), -1);
  // The agent counts all bytes that were sent to its peer, whichever way they went.
  const std::string counters = agent_->metrics();
  EXPECT_NE(counters.find(std::to_string(3 * kBytes)), std::string::npos) << counters;
}

TEST_P(StagingTest, WhatIsNotCachedGoesTheOtherWay) {
  make_file("cold", kBytes, 22);
  const Region file = open("cold", {.access = Access::kAll});
  const Transfer load = agent_->transfer(in_file(file, 0, kBytes), in_peer(0, kBytes));
  const int fd = ::open(folder_.uri("cold").substr(sizeof "file:" - 1).c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::fsync(fd), 0);
  for (const off_t from : {off_t{kBytes / 2}, off_t{0}}) {
    ASSERT_EQ(::posix_fadvise(fd, from, 0, POSIX_FADV_DONTNEED), 0);
    std::byte first = {};
    const iovec one = {&first, 1};
    const bool dropped = ::preadv2(fd, &one, 1, from, RWF_NOWAIT) < 0;
    std::memset(memory_->data(), 0, kBytes);
    ASSERT_EQ(run(load), Status::kOk);
    EXPECT_EQ(first_difference(memory_->data(), kBytes, 22), kBytes);
    if (!goes_straight() || !dropped) continue;
    EXPECT_LT(straight_bytes(load), int64_t{kBytes});
    if (from != 0) {
      EXPECT_GE(straight_bytes(load), int64_t{kBytes / 4});
    }
  }
  ::close(fd);
}

TEST_P(StagingTest, AccessRightsOfTheFileAreKept) {
  make_file("reading", kBytes, 13);
  const Region reading = open("reading", {.access = Access::kRead});
  try {
    (void)agent_->transfer(in_peer(0, 4096), in_file(reading, 0, 4096));
    FAIL() << "a file registered for reading was written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kPermissionDenied) << error.what();
  }
  EXPECT_EQ(run(agent_->transfer(in_file(reading, 0, 4096), in_peer(0, 4096))), Status::kOk);
}

TEST_P(StagingTest, AFileThatEndsTooSoonNamesTheBlocksThatAreMissing) {
  constexpr uint64_t kBlock = 10000;
  constexpr uint64_t kBlocks = 200;
  constexpr uint64_t kThere = 700000;  // 70 blocks of it
  make_file("short", kThere, 14);
  const Region file = open("short", {.access = Access::kAll, .bytes = kBlock * kBlocks});
  const BlockList ours = agent_->block_list(file.blocks(0, kBlock).repeat(kBlocks, kBlock));
  const BlockList theirs = peer_->block_list(at(0, kBlock).repeat(kBlocks, kBlock));
  const Transfer load = agent_->transfer(ours, theirs);
  ASSERT_EQ(run(load), Status::kShort);
  ASSERT_EQ(load.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  const auto result = load.result();
  ASSERT_GT(result.failed_ranges, 0u);
  ASSERT_LE(result.failed_ranges, 8u);
  std::vector<bool> failed(kBlocks);
  bool short_named = false;
  for (uint32_t i = 0; i < result.failed_ranges; ++i) {
    short_named = short_named || result.failed[i].status == TOWLINE_SHORT;
    for (uint64_t block = 0; block < result.failed[i].count; ++block)
      failed[result.failed[i].first + block] = true;
  }
  EXPECT_TRUE(short_named);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const uint64_t same = first_difference(memory_->data() + i * kBlock, kBlock, 14, i * kBlock);
    EXPECT_TRUE(failed[i] || same == kBlock) << "block " << i << " is said to be there";
    EXPECT_TRUE(failed[i] || i < kThere / kBlock) << i;
  }
  EXPECT_FALSE(failed[0]);
  EXPECT_TRUE(failed[kBlocks - 1]);
  EXPECT_LT(result.bytes, kThere + 1);
  // And it can be posted again once the file is whole.
  make_file("short", kBlock * kBlocks, 15);
  ASSERT_EQ(run(load), Status::kOk);
  EXPECT_EQ(first_difference(memory_->data(), kBlock * kBlocks, 15), kBlock * kBlocks);
}

TEST_P(StagingTest, CancelHasOneOutcomeAndAFence) {
  make_file("cancel", kBytes, 16);
  const Region file = open("cancel", {.access = Access::kAll});
  const Transfer load = agent_->transfer(in_file(file, 0, kBytes), in_peer(0, kBytes));
  for (int round = 0; round < 20; ++round) {
    std::memset(memory_->data(), 0, kBytes);
    ASSERT_FALSE(is_error(load.post())) << round;
    if (round % 3 == 1) std::this_thread::yield();
    load.cancel();
    const Status outcome = load.wait(60s);
    ASSERT_TRUE(outcome == Status::kCancelled || outcome == Status::kOk) << static_cast<int>(outcome);
    ASSERT_EQ(load.wait_fenced(Fence::kBoth, 60s), Status::kOk);
    // Nothing lands any more.
    std::memset(memory_->data(), 0x33, kBytes);
    const auto result = load.result();
    if (outcome == Status::kCancelled && result.bytes < kBytes) {
      EXPECT_GT(result.failed_ranges, 0u);
    }
    EXPECT_TRUE(support::all_are(memory_->data(), kBytes, std::byte{0x33}));
  }
  ASSERT_EQ(run(load), Status::kOk);
  EXPECT_EQ(first_difference(memory_->data(), kBytes, 16), kBytes);
}

TEST_P(StagingTest, AnAgentEndsWithTransfersInFlight) {
  make_file("late", kBytes, 17);
  const Region file = open("late", {.access = Access::kAll});
  const Transfer load = agent_->transfer(in_file(file, 0, kBytes), in_peer(0, kBytes));
  ASSERT_FALSE(is_error(load.post()));
  peer_.reset();
  agent_.reset();
  const Status outcome = load.poll();
  EXPECT_TRUE(outcome == Status::kOk || outcome == Status::kClosed) << static_cast<int>(outcome);
}

TEST_P(StagingTest, DeregisteringEitherSideMakesItStale) {
  make_file("gone", kBytes, 18);
  auto file = std::make_unique<Region>(open("gone", {.access = Access::kAll}));
  const Transfer load = agent_->transfer(in_file(*file, 0, kBytes), in_peer(0, kBytes));
  ASSERT_EQ(run(load), Status::kOk);
  ASSERT_FALSE(is_error(load.post()));
  file->deregister(60s);
  const Status outcome = load.wait(60s);
  EXPECT_TRUE(outcome == Status::kOk || outcome == Status::kStale) << static_cast<int>(outcome);
  ASSERT_EQ(load.wait_fenced(Fence::kLocal, 60s), Status::kOk);  // the other leg may still be under way
  EXPECT_EQ(load.post(), Status::kStale);
  file = std::make_unique<Region>(open("gone", {.access = Access::kAll}));
  const Transfer again = agent_->transfer(in_file(*file, 0, kBytes), in_peer(0, kBytes));
  ASSERT_EQ(run(again), Status::kOk);
  region_->deregister(60s);
  const auto until = std::chrono::steady_clock::now() + 60s;
  Status posted = Status::kOk;
  while (posted != Status::kStale && std::chrono::steady_clock::now() < until) posted = run(again);
  EXPECT_EQ(posted, Status::kStale);
}

TEST_P(StagingTest, NothingLandsOnceTheOwnerHasItsMemoryBack) {
  make_file("back", kBytes, 23);
  const Region file = open("back", {.access = Access::kAll});
  for (int round = 0; round < 8; ++round) {
    const Transfer load = agent_->transfer(in_file(file, 0, kBytes), in_peer(0, kBytes));
    std::atomic<int> posts{0};
    std::atomic<bool> stale{false};
    std::string why;
    std::thread poster([&load, &posts, &stale, &why] {
      const auto until = std::chrono::steady_clock::now() + 60s;
      Status outcome = Status::kOk;
      for (; outcome != Status::kStale && std::chrono::steady_clock::now() < until; ++posts)
        outcome = run(load);
      EXPECT_EQ(outcome, Status::kStale);
      why = last_error();
      stale = true;
    });
    while (posts < round && !stale) std::this_thread::yield();
    EXPECT_FALSE(stale) << "after " << posts << " posts, before the region was deregistered: " << why;
    region_->deregister(60s);
    std::memset(memory_->data(), 0x5a, kBytes);
    poster.join();
    EXPECT_TRUE(support::all_are(memory_->data(), kBytes, std::byte{0x5a}));
    region_ = std::make_unique<Region>(owner_->register_memory(
        {.address = memory_->data(), .bytes = kBytes, .kind = GetParam().transport.kind},
        {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(agent_->add_peer(owner_->metadata()));
  }
}

TEST_P(StagingTest, ACallerDrivenAgentStagesToo) {
  start({.progress = Progress::kCaller});
  make_file("driven", kBytes, 19);
  const Region file = open("driven");
  const Transfer load = agent_->transfer(in_file(file, 0, kBytes), in_peer(0, kBytes));
  ASSERT_EQ(run(load), Status::kOk);
  EXPECT_EQ(first_difference(memory_->data(), kBytes, 19), kBytes);
  ASSERT_FALSE(is_error(load.post()));
  while (load.poll() == Status::kInProgress) {
  }
  EXPECT_EQ(load.poll(), Status::kOk);
}

// With default settings, as one transfer; and as a replacement, which takes parts of several chunks too.
TEST(StagingToObjects, MemoryOfAPeerGoesToAnObjectAndComesBack) {
  if (support::S3Server::program().empty()) GTEST_SKIP() << support::S3Server::kMissing;
  constexpr uint64_t kBytes = (16 << 20) + 12345;
  BucketPlace bucket;
  const Agent owner("owner", {.listen = "127.0.0.1:0", .default_timeout = 60s});
  const Agent agent(
      "stager",
      {.listen = "127.0.0.1:0", .backends = "tcp,object", .config = bucket.config(), .default_timeout = 60s});
  const Memory memory(kBytes);
  const Region region = owner.register_memory(dram(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(owner.metadata());
  const BlockList theirs = peer.block_list(Blocks::at(memory.data(), kBytes));
  const auto run = [](const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(60s) : posted;
  };
  for (const bool replace : {false, true}) {
    const std::string name = replace ? "replaced" : "saved";
    const uint64_t seed = replace ? 32 : 31;
    stamp_bytes(memory.data(), kBytes, seed);
    {
      const Region object =
          agent.register_storage(bucket.uri(name), {.create = true, .replace = replace, .bytes = kBytes});
      const Transfer save = agent.transfer(theirs, agent.block_list(object.blocks(0, kBytes)));
      EXPECT_NE(save.route().find("tcp then object"), std::string::npos) << save.route();
      ASSERT_EQ(run(save), Status::kOk);
      EXPECT_EQ(save.result().bytes, kBytes);
      if (replace) object.commit();
    }
    const std::vector<std::byte> saved = bucket.get(name);
    ASSERT_EQ(saved.size(), kBytes);
    EXPECT_EQ(first_difference(saved.data(), kBytes, seed), kBytes);
    std::memset(memory.data(), 0, kBytes);
    const Region object = agent.register_storage(bucket.uri(name));
    ASSERT_EQ(run(agent.transfer(agent.block_list(object.blocks(0, kBytes)), theirs)), Status::kOk);
    EXPECT_EQ(first_difference(memory.data(), kBytes, seed), kBytes);
  }
}

// The peer's connection was idle and is made again, and the peer does not answer.
TEST(StagingDeadline, HoldsWhileAPostMakesItsLegs) {
  constexpr uint64_t kBytes = 64 << 10;
  const FolderPlace folder;
  const Agent owner("owner", {.progress = Progress::kCaller, .listen = "127.0.0.1:0", .backends = "tcp"});
  const Agent agent("stager", {.listen = "127.0.0.1:0",
                               .backends = "tcp,posix",
                               .config = "[tuning.connection]\nidle = \"50ms\"\n",
                               .default_timeout = 60s});
  const Memory memory(kBytes);
  const Region region = owner.register_memory(dram(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(owner.metadata());
  const Region file = agent.register_storage(folder.uri("late"), {.create = true, .bytes = kBytes});
  std::atomic<bool> answers{true};
  std::thread owners([&] {
    while (answers) owner.progress();
  });
  const Plan plan = agent.plan(peer.block_list(Blocks::at(memory.data(), kBytes)),
                               agent.block_list(file.blocks(0, kBytes)));
  answers = false;
  owners.join();
  while (peer.health() != Health::kLost) std::this_thread::yield();
  constexpr std::array<uint32_t, 1> kWhole = {0};
  const auto began = std::chrono::steady_clock::now();
  const Post save = plan.post({.from = kWhole, .to = kWhole, .deadline = Deadline(200ms)});
  EXPECT_EQ(save.wait(10s), Status::kTimedOut);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);
}

TEST(StagingPrices, AreThoseOfBothLegsAsMeasured) {
  constexpr uint64_t kBytes = 200 << 10;
  const FolderPlace folder;
  const Agent owner("owner", {.listen = "127.0.0.1:0", .backends = "tcp"});
  const Agent agent("stager", {.listen = "127.0.0.1:0", .backends = "tcp,posix", .default_timeout = 60s});
  const Memory memory(kBytes);
  const Region region = owner.register_memory(dram(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(owner.metadata());
  const Region file = agent.register_storage(folder.uri("priced"), {.create = true, .bytes = kBytes});
  const BlockList theirs = peer.block_list(Blocks::at(memory.data(), kBytes));
  const BlockList ours = agent.block_list(file.blocks(0, kBytes));
  const Transfer moves[] = {agent.transfer(theirs, ours), agent.transfer(ours, theirs)};
  for (const Transfer& move : moves) {
    for (int i = 0; i < 10; ++i) {
      const Status posted = move.post();
      ASSERT_EQ(posted == Status::kInProgress ? move.wait(60s) : posted, Status::kOk);
    }
    const std::string route = move.route();
    const size_t price = route.find("\"price\":{");
    ASSERT_NE(price, std::string::npos) << route;
    const std::string told = route.substr(price, route.find('}', price) - price);
    EXPECT_NE(told.find("\"from\":\"measured\""), std::string::npos) << told;
  }
}

// A peer that does not answer keeps one of them in flight.
TEST(StagingToAReplacement, ACommitThatTimesOutLeavesTransfersAsTheyWere) {
  constexpr uint64_t kBytes = 16 << 20;
  const FolderPlace folder;
  const Agent owner("owner", {.progress = Progress::kCaller, .listen = "127.0.0.1:0", .backends = "tcp"});
  const Agent agent("stager", {.listen = "127.0.0.1:0", .backends = "tcp,posix", .default_timeout = 60s});
  const Memory memory(kBytes);
  stamp_bytes(memory.data(), kBytes, 41);
  const Region region = owner.register_memory(dram(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(owner.metadata());
  const Region file = agent.register_storage(folder.uri("anew"), {.replace = true, .bytes = kBytes});
  std::vector<std::byte> first(4096);
  stamp_bytes(first.data(), first.size(), 41);
  const Region small = agent.register_memory(dram(first.data(), first.size()));
  const Transfer idle = agent.transfer(agent.block_list(Blocks::at(first.data(), first.size())),
                                       agent.block_list(file.blocks(0, first.size())));
  std::atomic<bool> answers{true};
  const auto answer = [&] {
    while (answers) owner.progress();
  };
  std::thread owners(answer);
  const Transfer save = agent.transfer(peer.block_list(Blocks::at(memory.data(), kBytes)),
                                       agent.block_list(file.blocks(0, kBytes)));
  answers = false;
  owners.join();
  ASSERT_EQ(save.post(), Status::kInProgress);
  try {
    file.commit(50ms);
    ADD_FAILURE() << "a transfer is in flight";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kTimedOut) << error.what();
  }
  answers = true;
  owners = std::thread(answer);
  EXPECT_EQ(save.wait(60s), Status::kOk) << save.route();
  const Status posted = idle.post();
  EXPECT_EQ(posted == Status::kInProgress ? idle.wait(60s) : posted, Status::kOk);
  answers = false;
  owners.join();
  file.commit();
  EXPECT_EQ(idle.post(), Status::kStale);
  const std::vector<std::byte> saved = folder.get("anew");
  ASSERT_EQ(saved.size(), kBytes);
  EXPECT_EQ(first_difference(saved.data(), kBytes, 41), kBytes);
}

TEST(StagingSettings, ThatMakeNoSenseAreNamed) {
  const auto refusal = [](const char* config) -> std::string {
    try {
      const Agent agent("settings", {.listen = "none", .config = std::string("[tuning.staging]\n") + config});
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_NE(refusal("chunk = 5000").find("tuning.staging.chunk"), std::string::npos);
  EXPECT_NE(refusal("chunk = \"2GiB\"").find("tuning.staging.chunk"), std::string::npos);
  EXPECT_NE(refusal("bytes = \"1MiB\"").find("tuning.staging.bytes"), std::string::npos);
  EXPECT_NE(refusal("depth = 1").find("tuning.staging.depth"), std::string::npos);
  EXPECT_EQ(refusal("bytes = \"8MiB\"\ndepth = 2"), "");
}

}  // namespace
}  // namespace towline::conformance

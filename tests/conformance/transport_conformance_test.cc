// Promises of every transport, through the public API.
#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "transport_fixture.h"

namespace towline::conformance {
namespace {

// The bytes that peers moved by themselves in one direction, from an agent's counters.
uint64_t served(const Agent& agent, const std::string& direction) {
  const nlohmann::json counters = nlohmann::json::parse(agent.metrics());
  uint64_t bytes = 0;
  for (const auto& series : counters.at("series"))
    if (series["direction"] == direction) bytes += series["served_bytes"].get<uint64_t>();
  return bytes;
}

TEST_P(TransportTest, WriteMovesPickedBlocksAndNoOthers) {
  stamp(left_memory_->data(), left_memory_->size(), 1);
  const auto from = shuffled(kBlocks, 1);
  const auto to = shuffled(kBlocks, 2);
  constexpr uint32_t kMoved = kBlocks / 2;
  const Transfer move =
      left_->transfer(mine()[std::span(from).first(kMoved)], theirs()[std::span(to).first(kMoved)]);
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  for (uint32_t i = 0; i < kMoved; ++i) {
    ASSERT_EQ(
        std::memcmp(right_memory_->data() + to[i] * kBlock, left_memory_->data() + from[i] * kBlock, kBlock),
        0)
        << "block " << i;
  }
  const std::vector<std::byte> zero(kBlock);
  for (uint32_t i = kMoved; i < kBlocks; ++i) {
    ASSERT_EQ(std::memcmp(right_memory_->data() + to[i] * kBlock, zero.data(), kBlock), 0)
        << "block " << to[i];
  }
  EXPECT_EQ(move.result().bytes, kMoved * kBlock);
  EXPECT_EQ(move.result().fences, 3u);
}

TEST_P(TransportTest, ReadMovesPickedBlocks) {
  stamp(right_memory_->data(), right_memory_->size(), 2);
  const auto from = shuffled(kBlocks, 3);
  const auto to = shuffled(kBlocks, 4);
  const Transfer move = left_->transfer(theirs()[from], mine()[to]);
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  for (uint32_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(
        std::memcmp(left_memory_->data() + to[i] * kBlock, right_memory_->data() + from[i] * kBlock, kBlock),
        0)
        << "block " << i;
  }
}

TEST_P(TransportTest, UnequalBlockSizesAreCutToFit) {
  stamp(left_memory_->data(), left_memory_->size(), 3);
  // Every other 8 KiB block here against 2 KiB blocks there.
  const Transfer move = left_->transfer(mine(8192)[Range{0, 2, 256}], theirs(2048)[Range{0, 1, 1024}]);
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  for (uint64_t i = 0; i < 256; ++i) {
    ASSERT_EQ(std::memcmp(right_memory_->data() + i * 8192, left_memory_->data() + i * 16384, 8192), 0) << i;
  }
}

TEST_P(TransportTest, NestedStridesMoveOneHeadOfEveryToken) {
  stamp(right_memory_->data(), right_memory_->size(), 4);
  // There: 64 pages of 16 tokens of 8 heads of 512 bytes. Here: the third head alone, packed.
  const Blocks theirs_head = at(right_memory_->data() + 2 * 512, 512).repeat(64, 65536).repeat(16, 4096);
  const Blocks mine_head = at(left_memory_->data(), 512).repeat(64 * 16, 512);
  const Transfer move = left_->transfer(peer_->block_list(theirs_head), left_->block_list(mine_head));
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  for (uint64_t token = 0; token < 64 * 16; ++token) {
    ASSERT_EQ(
        std::memcmp(left_memory_->data() + token * 512, right_memory_->data() + token * 4096 + 1024, 512), 0)
        << token;
  }
}

TEST_P(TransportTest, NoticeArrivesAfterEveryByte) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Transfer move = left_->transfer(from, to, {.notice = "first"});
  for (uint64_t round = 1; round <= 20; ++round) {
    stamp(left_memory_->data(), left_memory_->size(), round);
    const std::string text = "round " + std::to_string(round);
    ASSERT_EQ(move.set_notice(text), Status::kOk);
    ASSERT_GE(static_cast<int>(move.post()), 0);
    const Notice notice = next_notice(*right_);
    ASSERT_TRUE(notice);
    EXPECT_EQ(notice.text(), text);
    EXPECT_EQ(notice.peer_name(), "left");
    EXPECT_EQ(notice.peer_incarnation(), left_->incarnation());
    ASSERT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0) << round;
    ASSERT_EQ(move.wait(20s), Status::kOk);
  }
}

TEST_P(TransportTest, ReadCarriesANoticeToTheOwner) {
  const Transfer move = left_->transfer(theirs(), mine(), {.notice = "read it"});
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  EXPECT_EQ(next_notice(*right_).text(), "read it");
}

TEST_P(TransportTest, StandaloneNoticesKeepOrderAndWaitForCredit) {
  const std::string filler(1000, 'x');
  uint32_t sent = 0;
  Status status = Status::kOk;
  while (sent < 100000 && (status = peer_->send(std::to_string(sent) + " " + filler)) == Status::kOk) ++sent;
  EXPECT_EQ(status, Status::kAgain) << "a receiver that never looks must bound its sender";
  EXPECT_GT(sent, 100u);
  for (uint32_t i = 0; i < sent; ++i) {
    const Notice notice = next_notice(*right_);
    ASSERT_TRUE(notice);
    ASSERT_EQ(notice.text(), std::to_string(i) + " " + filler);
  }
  const auto until = std::chrono::steady_clock::now() + 20s;
  while ((status = peer_->send("again")) == Status::kAgain && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  EXPECT_EQ(status, Status::kOk) << "consumed notices give their credit back";
  EXPECT_EQ(next_notice(*right_).text(), "again");
}

TEST_P(TransportTest, EmptyAndLargestNoticesArriveWhole) {
  ASSERT_EQ(peer_->send(""), Status::kOk);
  const Notice empty = next_notice(*right_);
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.bytes().size(), 0u);
  std::string largest(TOWLINE_MAX_NOTICE_BYTES, 'n');
  for (size_t i = 0; i < largest.size(); ++i) largest[i] = static_cast<char>(i * 7);
  ASSERT_EQ(peer_->send(largest), Status::kOk);
  EXPECT_EQ(next_notice(*right_).text(), largest);
  EXPECT_EQ(peer_->send(largest + "!"), Status::kLimitExceeded);
}

TEST_P(TransportTest, CountersAddUpAfterTheData) {
  const Counter counter = right_->counter(5);
  const Transfer move = left_->transfer(mine(), theirs(), {.counter_key = counter.key(), .counter_add = 10});
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  ASSERT_EQ(counter.wait(15, 20s), Status::kOk);
  ASSERT_EQ(peer_->add(counter.key(), 3), Status::kOk);
  ASSERT_EQ(counter.wait(18, 20s), Status::kOk);
  EXPECT_EQ(counter.value(), 18u);
  EXPECT_EQ(counter.wait(19, 1ms), Status::kNotYet);
}

TEST_P(TransportTest, ATransferIsPostedAgainAndAgain) {
  const auto picks = shuffled(16, 9);
  const Transfer move = left_->transfer(mine()[picks], theirs()[picks]);
  for (uint64_t round = 0; round < 500; ++round) {
    stamp(left_memory_->data(), 16 * kBlock, round);
    ASSERT_EQ(run(move), Status::kOk) << round;
    ASSERT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), 16 * kBlock), 0) << round;
  }
}

TEST_P(TransportTest, LargeTransfersMoveWhole) {
  start({}, {}, uint64_t{48} << 20);
  stamp(left_memory_->data(), left_memory_->size(), 5);
  const Transfer write = left_->transfer(mine(16 << 20), theirs(16 << 20));
  ASSERT_EQ(run(write), Status::kOk) << last_error();
  ASSERT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
  stamp(right_memory_->data(), right_memory_->size(), 6);
  const Transfer read = left_->transfer(theirs(16 << 20), mine(16 << 20));
  ASSERT_EQ(run(read), Status::kOk) << last_error();
  ASSERT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
}

TEST_P(TransportTest, OddAddressesAndLengthsMoveExactly) {
  stamp(left_memory_->data(), left_memory_->size(), 7);
  for (const uint64_t length : {1, 3, 63, 1001, 4097}) {
    const BlockList from = left_->block_list(at(left_memory_->data() + 13, length).repeat(50, length + 5));
    const BlockList to = peer_->block_list(at(right_memory_->data() + 1, length).repeat(50, length + 9));
    ASSERT_EQ(run(left_->transfer(from, to)), Status::kOk) << last_error();
    for (uint64_t i = 0; i < 50; ++i) {
      ASSERT_EQ(std::memcmp(right_memory_->data() + 1 + i * (length + 9),
                            left_memory_->data() + 13 + i * (length + 5), length),
                0)
          << length << " block " << i;
    }
  }
}

TEST_P(TransportTest, WorkSplitOverTwoEnginesJoinsBeforeItsNotice) {
  start({.workers = 2}, {.workers = 2}, uint64_t{16} << 20);
  const Transfer move = left_->transfer(mine(), theirs(), {.notice = "joined", .workers = 2});
  for (uint64_t round = 0; round < 5; ++round) {
    stamp(left_memory_->data(), left_memory_->size(), round);
    ASSERT_EQ(run(move), Status::kOk) << last_error();
    ASSERT_EQ(next_notice(*right_).text(), "joined");
    ASSERT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
  }
}

TEST_P(TransportTest, CompletionsAreQueuedOrCalledBackOnce) {
  std::atomic<int> called{0};
  const Transfer called_back = left_->transfer(
      mine(), theirs(), {.user_data = &called, .callback = [](const towline_completion_t* completion) {
                           if (completion->status == TOWLINE_OK)
                             static_cast<std::atomic<int>*>(completion->user_data)->fetch_add(1);
                         }});
  ASSERT_EQ(run(called_back), Status::kOk);
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (called.load() == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(called.load(), 1);

  int tag = 0;
  const Transfer queued = left_->transfer(mine(), theirs(), {.queue_completion = true, .user_data = &tag});
  ASSERT_GE(static_cast<int>(queued.post()), 0);
  Completion completion;
  int32_t pulled = 0;
  while ((pulled = left_->pull({&completion, 1})) == 0 && std::chrono::steady_clock::now() < until)
    (void)left_->wait(10ms);
  ASSERT_EQ(pulled, 1);
  EXPECT_EQ(completion.outcome(), Status::kOk);
  EXPECT_EQ(completion.user_data, &tag);
  EXPECT_EQ(completion.transfer, queued.native());
  EXPECT_EQ(left_->pull({&completion, 1}), 0);
}

// The callback may run before post() returns, on the same thread or on another.
TEST_P(TransportTest, ATransferMayBeDestroyedByItsCallback) {
  start({.workers = 2}, {.workers = 2});
  for (const uint32_t workers : {1u, 2u}) {
    for (int round = 0; round < 10; ++round) {
      std::atomic<int32_t> destroyed{TOWLINE_IN_PROGRESS};
      towline_transfer_options_t options = {};
      options.struct_size = sizeof options;
      options.workers = workers;
      options.user_data = &destroyed;
      options.callback = [](const towline_completion_t* completion) {
        static_cast<std::atomic<int32_t>*>(completion->user_data)
            ->store(towline_transfer_destroy(completion->transfer, 20'000'000'000));
      };
      towline_transfer_t* transfer = nullptr;
      ASSERT_EQ(
          towline_transfer_create(left_->native(), mine().native(), theirs().native(), &options, &transfer),
          TOWLINE_OK)
          << last_error();
      ASSERT_GE(towline_transfer_post(transfer), 0) << last_error();
      const auto until = std::chrono::steady_clock::now() + 20s;
      while (destroyed.load() == TOWLINE_IN_PROGRESS && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
      ASSERT_EQ(destroyed.load(), TOWLINE_OK) << last_error();
    }
  }
}

TEST_P(TransportTest, PassiveApplicationsServeReadsAndWrites) {
  // `right` is never called in here: its hosted engine does what the path needs.
  stamp(right_memory_->data(), right_memory_->size(), 8);
  ASSERT_EQ(run(left_->transfer(theirs(), mine())), Status::kOk);
  ASSERT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
}

TEST_P(TransportTest, TheOwnerCountsWhatItTakesPartIn) {
  ASSERT_EQ(run(left_->transfer(mine(), theirs())), Status::kOk) << last_error();
  const Transfer read = left_->transfer(theirs(), mine());
  ASSERT_EQ(run(read), Status::kOk) << last_error();
  ASSERT_EQ(run(read), Status::kOk) << last_error();
  const uint64_t once = GetParam().framed ? left_memory_->size() : 0;
  // The owner counts an answer when its last byte is handed over, which the reader may see first.
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (served(*right_, "tx") < 2 * once && std::chrono::steady_clock::now() < until)
    (void)right_->wait(10ms);
  EXPECT_EQ(served(*right_, "tx"), 2 * once);
  EXPECT_EQ(served(*right_, "rx"), once);
  EXPECT_EQ(served(*left_, "tx"), 0u);
  EXPECT_EQ(served(*left_, "rx"), 0u);
}

TEST_P(TransportTest, CallerDrivenAgentsWorkWhileTheyAreDriven) {
  start({.progress = Progress::kCaller}, {.progress = Progress::kCaller});
  std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) right_->progress();
  });
  stamp(left_memory_->data(), left_memory_->size(), 9);
  {
    const Transfer move = left_->transfer(mine(), theirs(), {.notice = "driven"});
    EXPECT_EQ(run(move), Status::kOk) << last_error();
    EXPECT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
    EXPECT_EQ(next_notice(*right_).text(), "driven");
  }
  left_region_.reset();
  left_.reset();
}

TEST_P(TransportTest, ManyThreadsShareOneAgent) {
  constexpr int kThreads = 8;
  stamp(left_memory_->data(), left_memory_->size(), 10);
  const BlockList from = mine();
  const BlockList to = theirs();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Range share{t * kBlocks / kThreads, 1, kBlocks / kThreads};
      const Transfer move = left_->transfer(from[share], to[share], {.notice = "t"});
      for (int round = 0; round < 20; ++round) {
        Status status = run(move);
        while (status == Status::kAgain) {
          std::this_thread::yield();
          status = run(move);
        }
        if (status != Status::kOk) ++failures;
      }
    });
  }
  int notices = 0;
  while (notices < kThreads * 20) {
    const Notice notice = next_notice(*right_);
    if (!notice) break;
    ++notices;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(notices, kThreads * 20);
  EXPECT_EQ(std::memcmp(right_memory_->data(), left_memory_->data(), left_memory_->size()), 0);
}

TEST_P(TransportTest, AccessRightsAreKept) {
  const Buffer memory(kBlock, GetParam().shared_memory);
  const Region read_only =
      right_->register_memory(view(memory.data(), memory.size()), {.access = Access::kRead});
  const Peer peer = left_->add_peer(right_->metadata());
  const BlockList there = peer.block_list(at(memory.data(), kBlock));
  const BlockList here = left_->block_list(at(left_memory_->data(), kBlock));
  EXPECT_EQ(run(left_->transfer(there, here)), Status::kOk);
  try {
    (void)left_->transfer(here, there);
    FAIL() << "writing a read-only region was allowed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kPermissionDenied) << error.what();
  }
}

TEST_P(TransportTest, GuardedRegionsAreReachedOnlyWhereTheOwnerChecks) {
  if (!kSeesRings && (std::string(GetParam().name) == "shm" || GetParam().kind == Kind::kVram)) {
    GTEST_SKIP()
        << "guarded memory goes through the ring or host memory of both, which ThreadSanitizer can't follow";
  }
  const Buffer memory(kBlock, GetParam().shared_memory);
  stamp(memory.data(), memory.size(), 11);
  const Region guarded =
      right_->register_memory(view(memory.data(), memory.size()), {.access = Access::kAll, .guarded = true});
  const Peer peer = left_->add_peer(right_->metadata());
  const BlockList there = peer.block_list(at(memory.data(), kBlock));
  const BlockList here = left_->block_list(at(left_memory_->data(), kBlock));
  try {
    const Transfer move = left_->transfer(there, here);
    EXPECT_TRUE(GetParam().guards);
    EXPECT_EQ(run(move), Status::kOk);
    EXPECT_EQ(std::memcmp(left_memory_->data(), memory.data(), kBlock), 0);
  } catch (const Error& error) {
    EXPECT_FALSE(GetParam().guards) << error.what();
    EXPECT_EQ(error.code(), Status::kNoRoute) << error.what();
  }
}

// A list that was made before outlives its memory.
void expect_stale(const Agent& agent, const BlockList& here, const BlockList& there) {
  try {
    const Transfer late = agent.transfer(here, there);
    ADD_FAILURE() << "a transfer of deregistered memory was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kStale) << error.what();
  }
}

TEST_P(TransportTest, DeregisteredMemoryIsNeverTouchedAgain) {
  const BlockList there = theirs();
  const Transfer move = left_->transfer(mine(), there);
  ASSERT_EQ(run(move), Status::kOk);
  ASSERT_EQ(right_region_->deregister(20s), Status::kOk) << last_error();
  std::memset(right_memory_->data(), 0x5a, right_memory_->size());
  const Status status = run(move);
  EXPECT_EQ(status, Status::kStale) << status_name(status);
  expect_stale(*left_, mine(), there);
  for (uint64_t i = 0; i < right_memory_->size(); ++i)
    ASSERT_EQ(right_memory_->data()[i], std::byte{0x5a}) << i;
}

TEST_P(TransportTest, MetadataFromBeforeDoesNotReachDeregisteredMemory) {
  const auto before = right_->metadata();
  AgentOptions late_options;
  late_options.listen = "none";
  late_options.backends = GetParam().backends;
  late_options.config = GetParam().config;
  late_options.default_timeout = 20s;
  const Agent late("late", late_options);
  const Buffer late_memory(kBlock, GetParam().shared_memory);
  const Region late_region = late.register_memory(view(late_memory.data(), kBlock), {.access = Access::kAll});
  ASSERT_EQ(run(left_->transfer(mine(), theirs())), Status::kOk);
  ASSERT_EQ(right_region_->deregister(20s), Status::kOk) << last_error();
  std::memset(right_memory_->data(), 0x5a, right_memory_->size());
  // An agent that knew it, and an agent that connects for the first time.
  const auto write_from = [&](const Agent& agent, const Buffer& memory) {
    const Peer right = agent.add_peer(before);
    try {
      const Transfer write = agent.transfer(agent.block_list(at(memory.data(), kBlock)),
                                            right.block_list(at(right_memory_->data(), kBlock)));
      EXPECT_NE(run(write), Status::kOk);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == Status::kOutOfRange || error.code() == Status::kStale) << error.what();
    }
  };
  write_from(*left_, *left_memory_);
  write_from(late, late_memory);
  EXPECT_TRUE(support::all_are(right_memory_->data(), right_memory_->size(), std::byte{0x5a}));
}

TEST_P(TransportTest, NothingLandsInDeregisteredMemoryWhateverAPeerLearnsMeanwhile) {
  Peer owner = left_->connect(right_->address());
  const BlockList here = left_->block_list(at(left_memory_->data(), kBlock));
  right_region_.reset();
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> tries{0};
  std::thread peer([&] {
    for (; !stop; tries.fetch_add(1)) {
      try {
        owner.refresh(1s);
        const Transfer write = left_->transfer(here, owner.block_list(at(right_memory_->data(), kBlock)));
        (void)run(write);
      } catch (const Error&) {  // it came too late
      }
    }
  });
  const auto wait_for_tries = [&](uint32_t more) {
    for (const uint32_t before = tries; tries - before < more;) std::this_thread::yield();
  };
  for (int round = 0; round < 8; ++round) {
    Region region = right_->register_memory(view(right_memory_->data(), kBlock), {.access = Access::kAll});
    wait_for_tries(round % 3);
    EXPECT_EQ(region.deregister(20s), Status::kOk) << last_error();
    std::memset(right_memory_->data(), 0x5a, kBlock);
    wait_for_tries(2);
    EXPECT_TRUE(support::all_are(right_memory_->data(), kBlock, std::byte{0x5a}));
  }
  stop = true;
  peer.join();
}

TEST_P(TransportTest, NothingLandsInTheMemoryOfAnAgentThatHasClosed) {
#ifdef __SANITIZE_THREAD__
  if (GetParam().backends == std::string_view("cuda"))
    GTEST_SKIP()
        << "the peer's thread that copies is followed by a socket's end, which orders nothing for it";
#endif
  for (int round = 0; round < 6; ++round) {
    auto owner = std::make_unique<Agent>(
        "owner",
        AgentOptions{.listen = "127.0.0.1:0", .backends = GetParam().backends, .config = GetParam().config});
    const Buffer memory(kBlock * kBlocks, GetParam().shared_memory);
    Region region = owner->register_memory(view(memory.data(), memory.size()), {.access = Access::kAll});
    const Peer peer = left_->add_peer(owner->metadata());
    const Transfer move = left_->transfer(mine(), peer.block_list(cut(memory.data(), memory.size(), kBlock)));
    std::atomic<uint32_t> posts{0};
    std::thread poster([&] {
      for (Status last = Status::kOk; last == Status::kOk; posts.fetch_add(1)) last = run(move);
      posts.fetch_add(2);  // so that no thread waits for ever
    });
    while (posts.load() < 2) std::this_thread::yield();
    owner.reset();
    std::memset(memory.data(), 0x5a, memory.size());
    poster.join();
    EXPECT_TRUE(support::all_are(memory.data(), memory.size(), std::byte{0x5a}));
  }
}

TEST_P(TransportTest, AnOwnerMayDeregisterWhileItsPeersPost) {
  const BlockList here = left_->block_list(at(left_memory_->data(), kBlock));
  for (int round = 0; round < 8; ++round) {
    const Buffer memory(kBlock, GetParam().shared_memory);
    Region region = right_->register_memory(view(memory.data(), memory.size()), {.access = Access::kAll});
    const Peer peer = left_->add_peer(right_->metadata());
    const Transfer move = left_->transfer(here, peer.block_list(at(memory.data(), kBlock)));
    std::atomic<uint32_t> posts{0};
    Status last = Status::kOk;
    std::thread poster([&] {
      for (; last == Status::kOk; posts.fetch_add(1)) last = run(move);
      posts.fetch_add(2);  // so that no thread waits for ever
    });
    while (posts.load() < 2) std::this_thread::yield();
    const Status deregistered = region.deregister(20s);
    poster.join();
    ASSERT_EQ(deregistered, Status::kOk) << last_error();
    ASSERT_EQ(last, Status::kStale) << status_name(last);
  }
}

TEST_P(TransportTest, DeregisteringLocalMemoryStopsItsTransfers) {
  const BlockList here = mine();
  const Transfer move = left_->transfer(here, theirs());
  ASSERT_EQ(run(move), Status::kOk);
  ASSERT_EQ(left_region_->deregister(20s), Status::kOk) << last_error();
  EXPECT_EQ(move.post(), Status::kStale);
  expect_stale(*left_, here, theirs());
  EXPECT_THROW((void)mine(), Error);
}

TEST_P(TransportTest, CancelHasOneOutcomeAndAFence) {
  start({}, {}, uint64_t{64} << 20);
  const Transfer move = left_->transfer(mine(1 << 20), theirs(1 << 20));
  for (int round = 0; round < 5; ++round) {
    const Status posted = move.post();
    ASSERT_GE(static_cast<int>(posted), 0);
    move.cancel();
    const Status outcome = move.wait(20s);
    EXPECT_TRUE(outcome == Status::kCancelled || outcome == Status::kOk) << status_name(outcome);
    ASSERT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    EXPECT_EQ(move.poll(), outcome) << "an outcome never changes";
    // Fenced: what is written now is not overwritten by what was under way.
    std::memset(right_memory_->data(), 0x11, right_memory_->size());
    ASSERT_TRUE(support::all_are(right_memory_->data(), right_memory_->size(), std::byte{0x11}));
  }
  EXPECT_EQ(run(move), Status::kOk) << "a cancelled transfer can be posted again";
}

TEST_P(TransportTest, ACancelledReadIsFencedOnBothSidesWhileItsConnectionLasts) {
  start({}, {}, uint64_t{16} << 20);
  const Transfer move = left_->transfer(theirs(1 << 20), mine(1 << 20));
  const Transfer first_page = left_->transfer(theirs(4096)[Range{0, 1, 1}], mine(4096)[Range{0, 1, 1}]);
  for (int round = 0; round < 4; ++round) {
    ASSERT_GE(static_cast<int>(move.post()), 0);
    for (int poll = 0; poll < round * round; ++poll) (void)move.poll();
    move.cancel();
    const Status outcome = move.wait(20s);
    EXPECT_TRUE(outcome == Status::kCancelled || outcome == Status::kOk) << status_name(outcome);
    ASSERT_EQ(move.wait_fenced(Fence::kBoth, 60s), Status::kOk);
    EXPECT_EQ(move.result().fences, static_cast<uint32_t>(Fence::kBoth));
    std::memset(left_memory_->data(), 0x22, left_memory_->size());
    EXPECT_EQ(run(first_page), Status::kOk) << "the connection goes on";
    ASSERT_TRUE(support::all_are(left_memory_->data() + 4096, left_memory_->size() - 4096, std::byte{0x22}))
        << "a byte landed after the fence";
  }
  EXPECT_EQ(run(move), Status::kOk) << "a cancelled transfer can be posted again";
}

TEST_P(TransportTest, AClosedPeerEndsTransfersAndOthersGoOn) {
  Agent third("third",
              {.listen = "127.0.0.1:0", .backends = GetParam().backends, .config = GetParam().config});
  const Buffer memory(kBlock * kBlocks, GetParam().shared_memory);
  Region region = third.register_memory(view(memory.data(), memory.size()), {.access = Access::kAll});
  const Peer other = left_->add_peer(third.metadata());
  const Transfer to_right = left_->transfer(mine(), theirs(), {.timeout = 5s});
  const Transfer to_third =
      left_->transfer(mine(), other.block_list(cut(memory.data(), memory.size(), kBlock)));
  ASSERT_EQ(run(to_right), Status::kOk);
  right_region_.reset();
  right_.reset();
  Status status = Status::kOk;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (status == Status::kOk && std::chrono::steady_clock::now() < until) status = run(to_right);
  EXPECT_TRUE(is_error(status)) << status_name(status);
  EXPECT_EQ(run(to_third), Status::kOk) << last_error();
}

// A post that was accepted is not refused because its outcome came before it returned.
TEST_P(TransportTest, ADeadlineThatIsOverAtOnceEndsAnAcceptedPost) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int kPosts = 50;  // of 4 MiB, which take several times as long
#else
  constexpr int kPosts = 200;
#endif
  ASSERT_EQ(run(left_->transfer(mine(), theirs())), Status::kOk) << last_error();  // connected
  for (int i = 0; i < kPosts; ++i) {
    const Transfer move = left_->transfer(mine(), theirs(), {.timeout = 1ns});
    const Status posted = move.post();
    ASSERT_TRUE(posted == Status::kOk || posted == Status::kInProgress) << status_name(posted);
    const Status status = move.wait(20s);
    ASSERT_TRUE(status == Status::kOk || status == Status::kTimedOut) << status_name(status);
    ASSERT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  }
  EXPECT_EQ(run(left_->transfer(mine(), theirs())), Status::kOk) << last_error();
}

TEST_P(TransportTest, ARestartedPeerIsANewIncarnation) {
  const Transfer old = left_->transfer(mine(), theirs(), {.timeout = 20s});
  ASSERT_EQ(run(old), Status::kOk);
  right_.reset();  // as a crash would, without deregistering
  right_region_.reset();
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (peer_->health() != Health::kLost) {  // an agent that is still connected keeps its name
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::yield();
  }
  right_ = std::make_unique<Agent>(
      "right",
      AgentOptions{.listen = "127.0.0.1:0", .backends = GetParam().backends, .config = GetParam().config});
  right_region_ = std::make_unique<Region>(
      right_->register_memory(view(right_memory_->data(), right_memory_->size()), {.access = Access::kAll}));
  const Peer again = left_->add_peer(right_->metadata());
  EXPECT_NE(again.incarnation(), peer_->incarnation());
  EXPECT_EQ(old.post(), Status::kPeerRestarted);
  const BlockList there = again.block_list(cut(right_memory_->data(), right_memory_->size(), kBlock));
  EXPECT_EQ(run(left_->transfer(mine(), there)), Status::kOk) << last_error();
}

TEST_P(TransportTest, APeersRegionsComeInTheOrderOfRegistration) {
  std::vector<Region> more;
  for (uint64_t i = 0; i < 8; ++i)
    more.push_back(right_->register_memory(view(right_memory_->data() + (8 - i) * kBlock, kBlock),
                                           {.access = Access::kAll}));
  peer_->refresh();
  const std::vector<RegionInfo> regions = peer_->regions();
  ASSERT_EQ(regions.size(), more.size() + 1);
  EXPECT_EQ(regions[0].key, right_region_->key());
  for (std::size_t i = 0; i < more.size(); ++i) EXPECT_EQ(regions[i + 1].key, more[i].key());
}

TEST_P(TransportTest, RouteSaysWhichBackendAndWhy) {
  const Transfer move = left_->transfer(mine(), theirs());
  const std::string route = move.route();
  EXPECT_NE(route.find("\"backend\":\"" + GetParam().backend() + "\""), std::string::npos) << route;
  EXPECT_NE(route.find("\"how\""), std::string::npos) << route;
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest, ::testing::ValuesIn(transports()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace towline::conformance

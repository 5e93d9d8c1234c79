// Promises of every way of storing: bytes, their order, errors that name the range, ends and fences.
#include "storage_fixture.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>

#include "support/directed.h"
#include "towline/queue.hpp"

namespace towline::conformance {
namespace {

INSTANTIATE_TEST_SUITE_P(All, StorageTest, ::testing::ValuesIn(stores()),
                         [](const auto& store) { return std::string(store.param.name); });

// ---- bytes

TEST_P(StorageTest, WritesAndReadsWholeFiles) {
  const Region file = open("whole", {.create = true, .bytes = kBytes});
  stamp_bytes(memory_.data(), kBytes, 1);
  ASSERT_EQ(move(Op::write, 0, file, 0, kBytes), Status::kOk);
  const std::vector<std::byte> contents = place_->get("whole");
  ASSERT_EQ(contents.size(), kBytes);
  EXPECT_EQ(first_difference(contents.data(), kBytes, 1), kBytes);
  std::memset(memory_.data(), 0, memory_.size());
  ASSERT_EQ(move(Op::read, 0, file, 0, kBytes), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 1), kBytes);
}

TEST_P(StorageTest, AnyAddressLengthAndOffsetWillDo) {
  FILES_ONLY("a WRITE within one keeps at least 5 MiB before it");
  constexpr uint64_t kFile = 1 << 20;
  make_file("odd", kFile, 2);
  const Region file = open("odd", {.access = Access::kAll});
  std::vector<std::byte> expected = place_->get("odd");
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    const uint64_t sizes[] = {1, 7, 511, 512, 513, 4095, 4096, 4097, 70000, 300001};
    const uint64_t bytes = sizes[static_cast<size_t>(round) % std::size(sizes)];
    const uint64_t at = random() % (kFile - bytes);
    const uint64_t in = random() % 5000;
    SCOPED_TRACE(std::to_string(bytes) + " bytes at " + std::to_string(at) + ", memory at " +
                 std::to_string(in));
    // Around what is read nothing may change.
    std::fill(memory_.begin(), memory_.begin() + 400000, std::byte{0x55});
    ASSERT_EQ(move(Op::read, in, file, at, bytes), Status::kOk);
    ASSERT_TRUE(std::equal(expected.begin() + static_cast<long>(at),
                           expected.begin() + static_cast<long>(at + bytes),
                           memory_.begin() + static_cast<long>(in)));
    ASSERT_TRUE(in == 0 || memory_[in - 1] == std::byte{0x55});
    ASSERT_EQ(memory_[in + bytes], std::byte{0x55});
    stamp_bytes(memory_.data() + in, bytes, static_cast<uint64_t>(round) + 100);
    ASSERT_EQ(move(Op::write, in, file, at, bytes), Status::kOk);
    std::copy_n(memory_.begin() + static_cast<long>(in), bytes, expected.begin() + static_cast<long>(at));
  }
  EXPECT_TRUE(place_->get("odd") == expected);
}

TEST_P(StorageTest, PickedPagesGoWhereTheyBelong) {
  constexpr uint64_t kPage = 4096;
  constexpr uint32_t kPages = 1024;
  make_file("pages", kPage * kPages, 3);
  const Region file = open("pages", {.access = Access::kAll});
  const BlockList mine = agent_->block_list(blocks_of(memory_.data(), kPage * kPages, kPage));
  const BlockList theirs = agent_->block_list(file.blocks(0, kPage).repeat(kPages, kPage));
  std::vector<uint32_t> from(kPages);
  std::iota(from.begin(), from.end(), 0u);
  std::shuffle(from.begin(), from.end(), std::mt19937(11));
  std::vector<uint32_t> to(from.rbegin(), from.rend());
  ASSERT_EQ(run(agent_->transfer(theirs[from], mine[to])), Status::kOk);
  for (uint32_t i = 0; i < kPages; ++i) {
    ASSERT_EQ(first_difference(memory_.data() + to[i] * kPage, kPage, 3, from[i] * kPage), kPage) << i;
  }
  stamp_bytes(memory_.data(), kPage * kPages, 4);
  ASSERT_EQ(run(agent_->transfer(mine[from], theirs[to])), Status::kOk);
  const std::vector<std::byte> contents = place_->get("pages");
  for (uint32_t i = 0; i < kPages; ++i) {
    ASSERT_EQ(first_difference(contents.data() + to[i] * kPage, kPage, 4, from[i] * kPage), kPage) << i;
  }
}

TEST_P(StorageTest, ScatteredMemoryMeetsOneStretchOfTheFile) {
  FILES_ONLY("a WRITE within one keeps at least 5 MiB before it");
  // Neighbours in the file, apart in memory, of odd lengths: vectored calls, or bounced ones.
  make_file("stretch", 1 << 20, 5);
  const Region file = open("stretch", {.access = Access::kAll});
  std::vector<Blocks> mine;
  std::vector<Blocks> theirs;
  uint64_t in_file_at = 100;
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t bytes = 1 + i * 13;
    mine.push_back(Blocks::at(memory_.data() + i * 4001, bytes));
    theirs.push_back(file.blocks(in_file_at, bytes));
    in_file_at += bytes;
  }
  ASSERT_EQ(run(agent_->transfer(agent_->block_list(theirs), agent_->block_list(mine))), Status::kOk);
  in_file_at = 100;
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t bytes = 1 + i * 13;
    ASSERT_EQ(first_difference(memory_.data() + i * 4001, bytes, 5, in_file_at), bytes) << i;
    stamp_bytes(memory_.data() + i * 4001, bytes, 6, in_file_at);
    in_file_at += bytes;
  }
  ASSERT_EQ(run(agent_->transfer(agent_->block_list(mine), agent_->block_list(theirs))), Status::kOk);
  const std::vector<std::byte> contents = place_->get("stretch");
  EXPECT_EQ(first_difference(contents.data(), 100, 5), 100u);
  EXPECT_EQ(first_difference(contents.data() + 100, in_file_at - 100, 6, 100), in_file_at - 100);
  EXPECT_EQ(first_difference(contents.data() + in_file_at, 1000, 5, in_file_at), 1000u);
}

TEST_P(StorageTest, SeveralFilesInOneTransfer) {
  constexpr uint64_t kEach = 256 << 10;
  std::vector<Region> files;
  std::vector<Blocks> theirs;
  for (uint64_t i = 0; i < 5; ++i) {
    make_file("several" + std::to_string(i), kEach, 20 + i, false);
    files.push_back(open("several" + std::to_string(i)));
    theirs.push_back(files.back().blocks(0, kEach));
  }
  const BlockList mine = agent_->block_list(blocks_of(memory_.data(), 5 * kEach, kEach));
  ASSERT_EQ(run(agent_->transfer(agent_->block_list(theirs), mine)), Status::kOk);
  for (uint64_t i = 0; i < 5; ++i)
    EXPECT_EQ(first_difference(memory_.data() + i * kEach, kEach, 20 + i), kEach) << i;
}

// A descriptor's number may be another file's the next time.
TEST_P(StorageTest, SmallPagesOfTwoFilesAreThoseOfTheFilesThatAreOpen) {
  constexpr uint64_t kPage = 4096;
  constexpr uint64_t kPages = 20;  // of each file, every other page
  for (uint64_t round = 0; round < 4; ++round) {
    std::vector<Region> files;
    std::vector<Blocks> theirs;
    for (uint64_t i = 0; i < 2; ++i) {
      const std::string name = "small" + std::to_string(round) + std::to_string(i);
      make_file(name, 2 * kPages * kPage, 30 + 2 * round + i);
      files.push_back(open(name));
      theirs.push_back(files.back().blocks(0, kPage).repeat(kPages, 2 * kPage));
    }
    const BlockList mine = agent_->block_list(blocks_of(memory_.data(), 2 * kPages * kPage, kPage));
    const Transfer read = agent_->transfer(agent_->block_list(theirs), mine);
    for (int post = 0; post < 2; ++post) {
      std::memset(memory_.data(), 0, 2 * kPages * kPage);
      ASSERT_EQ(run(read), Status::kOk);
      for (uint64_t i = 0; i < 2 * kPages; ++i) {
        const uint64_t at = 2 * (i % kPages) * kPage;
        ASSERT_EQ(first_difference(memory_.data() + i * kPage, kPage, 30 + 2 * round + i / kPages, at), kPage)
            << round << ' ' << i;
      }
    }
  }
}

// The kernel's table of descriptors has room for 1,024: a transfer that found none in it must not make room
// for another's file.
TEST_P(StorageTest, MoreFilesThanTheKernelsTableHoldsAreNotMistakenForOneAnother) {
  FILES_ONLY("they are in no table");
  constexpr uint64_t kPage = 512;
  constexpr uint64_t kPages = 8;
  constexpr size_t kTable = 1024;
  struct Reading {
    Region file;
    Transfer transfer;
  };
  const auto prepare = [&](const Region& file) {
    return agent_->transfer(agent_->block_list(file.blocks(0, kPage).repeat(kPages, 2 * kPage)),
                            agent_->block_list(blocks_of(memory_.data(), kPages * kPage, kPage)));
  };
  const auto make = [&](const std::string& name, uint64_t seed) {
    make_file(name, 2 * kPages * kPage, seed);
    return open(name);
  };
  const auto expect = [&](const Transfer& transfer, uint64_t seed) {
    std::memset(memory_.data(), 0, kPages * kPage);
    ASSERT_EQ(run(transfer), Status::kOk);
    for (uint64_t i = 0; i < kPages; ++i)
      ASSERT_EQ(first_difference(memory_.data() + i * kPage, kPage, seed, 2 * i * kPage), kPage) << i;
  };
  std::vector<Reading> full;
  for (size_t i = 0; i < kTable; ++i) {
    Region file = make("full" + std::to_string(i), 1000 + i);
    Transfer transfer = prepare(file);
    full.push_back({std::move(file), std::move(transfer)});
  }
  const Region late = make("late", 1);
  std::optional<Transfer> without_room = prepare(late);
  expect(*without_room, 1);
  full.pop_back();
  const Transfer with_room = prepare(late);
  expect(with_room, 1);
  without_room.reset();
  const Region other = make("other", 2);
  const Transfer of_other = prepare(other);
  expect(of_other, 2);
  expect(with_room, 1);
  for (size_t i = 0; i < full.size(); i += 100) expect(full[i].transfer, 1000 + i);
}

TEST_P(StorageTest, ReadingMovesNoAccessTime) {
  FILES_ONLY("they have none");
  make_file("read", 1 << 20, 40);
  const std::string path = folder_->path("read");
  // So old that it would be moved also where that is done once a day.
  const timespec times[2] = {{1'000'000, 0}, {0, UTIME_NOW}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const Region file = open("read");
  for (const uint64_t bytes : {4096, 1 << 20}) {
    ASSERT_EQ(move(Op::read, 0, file, 0, bytes), Status::kOk);
    ASSERT_EQ(first_difference(memory_.data(), bytes, 40), bytes);
  }
  struct stat found = {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_atim.tv_sec, 1'000'000);
}

TEST_P(StorageTest, WhatIsNotCachedIsReadToo) {
  make_file("cold", kBytes, 8, false);
  const Region file = open("cold");
  ASSERT_EQ(move(Op::read, 0, file, 0, kBytes), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 8), kBytes);
}

TEST_P(StorageTest, HugeOffsetsAndHolesAreOrdinary) {
  FILES_ONLY("they have no holes");
  constexpr uint64_t kFar = (uint64_t{5} << 32) + 12345;
  const Region file = open("sparse", {.create = true, .bytes = uint64_t{1} << 40});
  stamp_bytes(memory_.data(), 10000, 9);
  ASSERT_EQ(move(Op::write, 0, file, kFar, 10000), Status::kOk);
  std::memset(memory_.data(), 0xff, 20000);
  ASSERT_EQ(move(Op::read, 0, file, kFar, 10000), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), 10000, 9), 10000u);
  ASSERT_EQ(move(Op::read, 0, file, uint64_t{1} << 32, 10000), Status::kOk);
  EXPECT_TRUE(support::all_are(memory_.data(), 10000, std::byte{}));
}

TEST_P(StorageTest, TransfersArePostedAgainAndAgain) {
  make_file("again", 1 << 20, 10);
  const Region file = open("again");
  const Transfer read = agent_->transfer(in_file(file, 0, 1 << 20), in_memory(0, 1 << 20));
  for (int i = 0; i < 20; ++i) {
    std::memset(memory_.data(), 0, 1 << 20);
    ASSERT_EQ(run(read), Status::kOk);
    ASSERT_EQ(first_difference(memory_.data(), 1 << 20, 10), uint64_t{1} << 20);
  }
  EXPECT_EQ(read.result().fences, static_cast<uint32_t>(Fence::kBoth));
}

TEST_P(StorageTest, DescriptorsWork) {
  FILES_ONLY("they have no descriptors");
  make_file("described", 100000, 12);
  const int fd = ::open(folder_->path("described").c_str(), O_RDWR | O_APPEND);
  ASSERT_GE(fd, 0);
  const Region file = agent_->register_storage(fd, {.access = Access::kAll, .direct = GetParam().direct});
  ::close(fd);
  ASSERT_EQ(move(Op::read, 1, file, 0, 100000), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data() + 1, 100000, 12), 100000u);
  // An appending descriptor appends at its owner's; ours writes where it says.
  stamp_bytes(memory_.data(), 10, 13);
  ASSERT_EQ(move(Op::write, 0, file, 0, 10), Status::kOk);
  const std::vector<std::byte> contents = place_->get("described");
  EXPECT_EQ(contents.size(), 100000u);
  EXPECT_EQ(first_difference(contents.data(), 10, 13), 10u);
}

TEST_P(StorageTest, SyncPoliciesWriteToTheDevice) {
  for (const Sync sync : {Sync::kData, Sync::kFull}) {
    const Region file = open("synced", {.create = true, .sync = sync, .bytes = 1 << 20});
    stamp_bytes(memory_.data(), 1 << 20, 14);
    ASSERT_EQ(move(Op::write, 0, file, 0, 1 << 20), Status::kOk);
    EXPECT_TRUE(first_difference(place_->get("synced").data(), 1 << 20, 14) == 1 << 20);
  }
}

// ---- errors

towline_failed_range_t only_failure(const Transfer& transfer) {
  EXPECT_EQ(transfer.wait_fenced(Fence::kBoth, 30s), Status::kOk);
  const Result result = transfer.result();
  EXPECT_EQ(result.failed_ranges, 1u);
  EXPECT_EQ(result.fences, static_cast<uint32_t>(Fence::kBoth));
  return result.failures().empty() ? towline_failed_range_t{} : result.failures()[0];
}

TEST_P(StorageTest, AShortReadIsAnErrorThatNamesItsBlocks) {
  constexpr uint64_t kPage = 4096;
  make_file("short", kPage * 10 + 100, 15);
  const Region file = open("short", {.bytes = kPage * 64});
  const BlockList mine = agent_->block_list(blocks_of(memory_.data(), kPage * 64, kPage));
  const BlockList theirs = agent_->block_list(file.blocks(0, kPage).repeat(64, kPage));
  const Transfer read = agent_->transfer(theirs, mine);
  EXPECT_EQ(run(read), Status::kShort);
  const towline_failed_range_t failure = only_failure(read);
  EXPECT_EQ(failure.first, 10u);
  EXPECT_EQ(failure.status, static_cast<int32_t>(Status::kShort));
  EXPECT_EQ(first_difference(memory_.data(), kPage * 10, 15), kPage * 10);
}

TEST_P(StorageTest, ReadingPastTheEndIsShort) {
  make_file("past", 1000, 16);
  const Region file = open("past", {.bytes = 1 << 20});
  EXPECT_EQ(move(Op::read, 0, file, 500000, 10), Status::kShort);
  EXPECT_EQ(move(Op::read, 0, file, 990, 10), Status::kOk);
  EXPECT_EQ(move(Op::read, 0, file, 990, 11), Status::kShort);
}

TEST_P(StorageTest, AFileCutShortBetweenPostsIsNoticed) {
  FILES_ONLY("they are replaced, not cut: see tests/interop/object");
  make_file("cut", 2 << 20, 17);
  const Region file = open("cut");
  const Transfer read = agent_->transfer(in_file(file, 0, 2 << 20), in_memory(0, 2 << 20));
  ASSERT_EQ(run(read), Status::kOk);
  ASSERT_EQ(::truncate(folder_->path("cut").c_str(), 1 << 20), 0);
  EXPECT_EQ(run(read), Status::kShort);
  EXPECT_GE(read.result().bytes, 0u);
  EXPECT_LE(read.result().bytes, uint64_t{1} << 20);
}

TEST_P(StorageTest, OneFilesErrorIsNotAnothers) {
  make_file("good", 4 << 20, 18, false);
  make_file("bad", 1000, 19);
  const Region good = open("good");
  const Region bad = open("bad", {.bytes = 4 << 20});
  const Transfer fine = agent_->transfer(in_file(good, 0, 4 << 20), in_memory(0, 4 << 20));
  const Transfer wrong = agent_->transfer(in_file(bad, 0, 1 << 20), in_memory(4 << 20, 1 << 20));
  for (int i = 0; i < 10; ++i) {
    Status bad_status = wrong.post();
    Status good_status = fine.post();
    if (good_status == Status::kInProgress) good_status = fine.wait(30s);
    if (bad_status == Status::kInProgress) bad_status = wrong.wait(30s);
    ASSERT_EQ(good_status, Status::kOk);
    ASSERT_EQ(bad_status, Status::kShort);
    ASSERT_EQ(wrong.wait_fenced(Fence::kBoth, 30s), Status::kOk);
    ASSERT_EQ(fine.result().failed_ranges, 0u);
  }
}

TEST_P(StorageTest, AccessIsKept) {
  make_file("reading", 4096, 20);
  const Region reading = open("reading", {.access = Access::kRead});
  EXPECT_THROW((void)agent_->transfer(in_memory(0, 16), in_file(reading, 0, 16)), Error);
  const Region writing = open("reading", {.access = Access::kWrite});
  EXPECT_THROW((void)agent_->transfer(in_file(writing, 0, 4096), in_memory(0, 4096)), Error);
  EXPECT_EQ(move(Op::write, 0, writing, 0, 4096), Status::kOk);
}

// ---- ends

TEST_P(StorageTest, CancelHasOneOutcomeAndAFence) {
  make_file("cancelled", kBytes, 21, false);
  const Region file = open("cancelled");
  const Transfer read = agent_->transfer(in_file(file, 0, kBytes), in_memory(0, kBytes));
  for (int i = 0; i < 20; ++i) {
    const Status posted = read.post();
    ASSERT_FALSE(is_error(posted));
    read.cancel();
    const Status outcome = read.wait(30s);
    ASSERT_TRUE(outcome == Status::kOk || outcome == Status::kCancelled);
    ASSERT_EQ(read.wait_fenced(Fence::kBoth, 30s), Status::kOk);
    // Nothing lands any more.
    std::memset(memory_.data(), 0x5a, kBytes);
    (void)agent_->progress();
    ASSERT_TRUE(support::all_are(memory_.data(), kBytes, std::byte{0x5a}));
  }
  ASSERT_EQ(run(read), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 21), kBytes);
}

TEST_P(StorageTest, ADeadlineEndsWhatTakesTooLong) {
  make_file("late", kBytes, 22, false);
  const Region file = open("late");
  const Transfer read = agent_->transfer(in_file(file, 0, kBytes), in_memory(0, kBytes), {.timeout = 1ns});
  const Status outcome = run(read);
  ASSERT_TRUE(outcome == Status::kTimedOut || outcome == Status::kOk) << static_cast<int>(outcome);
  ASSERT_EQ(read.wait_fenced(Fence::kBoth, 30s), Status::kOk);
}

TEST_P(StorageTest, DeregisteringWaitsAndClosesTheFile) {
  make_file("closing", kBytes, 23, false);
  auto file = std::make_unique<Region>(open("closing"));
  const Transfer read = agent_->transfer(in_file(*file, 0, kBytes), in_memory(0, kBytes));
  ASSERT_FALSE(is_error(read.post()));
  ASSERT_EQ(file->deregister(30s), Status::kOk);
  file.reset();
  const Status outcome = read.wait(30s);
  EXPECT_TRUE(outcome == Status::kOk || outcome == Status::kCancelled || outcome == Status::kStale)
      << static_cast<int>(outcome);
  EXPECT_EQ(read.post(), Status::kStale);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    EXPECT_EQ(std::filesystem::read_symlink(entry, gone).string().find("/closing"), std::string::npos);
  }
}

// Maintenance of links has an interval of two milliseconds: applications that register each object wait for none.
TEST_P(StorageTest, DeregisteringDoesNotWaitForMaintenance) {
  auto best = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 20; ++i) {
    Region file = open("brief", {.create = true, .truncate = true, .bytes = 4096});
    ASSERT_EQ(move(Op::write, 0, file, 0, 4096), Status::kOk);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(file.deregister(kPatience), Status::kOk);
    best = std::min(best, std::chrono::steady_clock::now() - begin);
  }
  EXPECT_LT(best, 1ms);
}

TEST_P(StorageTest, AnAgentEndsWithTransfersInFlight) {
  make_file("ending", kBytes, 24, false);
  Region file = open("ending");
  const Transfer read = agent_->transfer(in_file(file, 0, kBytes), in_memory(0, kBytes));
  ASSERT_FALSE(is_error(read.post()));
  agent_.reset();
  const Status outcome = read.poll();
  EXPECT_TRUE(outcome == Status::kOk || outcome == Status::kClosed) << static_cast<int>(outcome);
  std::memset(memory_.data(), 0x77, kBytes);
  EXPECT_EQ(memory_[kBytes - 1], std::byte{0x77});
}

TEST_P(StorageTest, NoticesFollowTheBytes) {
  const Region file = open("noticed", {.create = true, .bytes = 1 << 20});
  stamp_bytes(memory_.data(), 1 << 20, 25);
  const Transfer write =
      agent_->transfer(in_memory(0, 1 << 20), in_file(file, 0, 1 << 20), {.notice = "stored"});
  ASSERT_EQ(run(write), Status::kOk);
  Notice notice;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (agent_->receive(notice) != Status::kOk && std::chrono::steady_clock::now() < deadline) {
    (void)agent_->wait(100ms);
  }
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice.text(), "stored");
  EXPECT_EQ(first_difference(place_->get("noticed").data(), 1 << 20, 25), uint64_t{1} << 20);
}

TEST_P(StorageTest, ManyThreadsMoveAtOnce) {
  constexpr uint64_t kEach = 1 << 20;
  make_file("shared", kBytes, 26, false);
  const Region file = open("shared");
  std::vector<std::thread> threads;
  std::vector<Status> outcomes(8, Status::kInternal);
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const Transfer read = agent_->transfer(in_file(file, t * kEach, kEach), in_memory(t * kEach, kEach));
      for (int i = 0; i < 10; ++i) {
        outcomes[t] = run(read);
        if (outcomes[t] != Status::kOk) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status outcome : outcomes) EXPECT_EQ(outcome, Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 26), kBytes);
}

TEST_P(StorageTest, WhatAThreadPostedOutlivesTheThread) {
  // io_uring drops what a thread that ends has in flight: it must be asked for again.
  make_file("orphan", kBytes, 27, false);
  const Region file = open("orphan");
  const Transfer read = agent_->transfer(in_file(file, 0, kBytes), in_memory(0, kBytes));
  Status posted = Status::kInternal;
  std::thread([&] { posted = read.post(); }).join();
  ASSERT_FALSE(is_error(posted));
  ASSERT_EQ(read.wait(30s), Status::kOk) << "errno " << read.result().failed[0].vendor_code;
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 27), kBytes);
}

TEST_P(StorageTest, ACallerDrivenAgentStoresToo) {
  AgentOptions options = agent_options();
  options.progress = Progress::kCaller;
  const Agent agent("driven", options);
  make_file("driven", kBytes, 28, false);
  const Region file = agent.register_storage(place_->uri("driven"), {.direct = GetParam().direct});
  const Region memory = agent.register_memory(dram(memory_.data(), kBytes), {.access = Access::kAll});
  const Transfer read = agent.transfer(agent.block_list(file.blocks(0, kBytes)),
                                       agent.block_list(Blocks::at(memory_.data(), kBytes)));
  ASSERT_EQ(run(read), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 28), kBytes);
}

TEST_P(StorageTest, WorkSplitOverWorkersArrivesWhole) {
  AgentOptions options = agent_options();
  options.workers = 3;
  const Agent agent("split", options);
  make_file("split", kBytes, 29, false);
  const Region file = agent.register_storage(
      place_->uri("split"), {.access = Access::kAll, .direct = GetParam().direct, .sync = Sync::kData});
  const Region memory = agent.register_memory(dram(memory_.data(), kBytes), {.access = Access::kAll});
  const BlockList mine = agent.block_list(Blocks::at(memory_.data(), kBytes));
  const BlockList theirs = agent.block_list(file.blocks(0, kBytes));
  ASSERT_EQ(run(agent.transfer(theirs, mine, {.workers = 3})), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 29), kBytes);
  stamp_bytes(memory_.data(), kBytes, 30);
  ASSERT_EQ(run(agent.transfer(mine, theirs, {.workers = 3})), Status::kOk);
  EXPECT_EQ(first_difference(place_->get("split").data(), kBytes, 30), kBytes);
}

// ---- replacing

TEST_P(StorageTest, AReplacementIsSeenWholeOrNotAtAll) {
  make_file("replaced", 100000, 31);
  {
    const Region file = open("replaced", {.replace = true, .bytes = 1 << 20});
    stamp_bytes(memory_.data(), 1 << 20, 32);
    const Transfer write = agent_->transfer(in_memory(0, 1 << 20), in_file(file, 0, 1 << 20));
    ASSERT_EQ(run(write), Status::kOk);
    EXPECT_EQ(first_difference(place_->get("replaced").data(), 100000, 31), 100000u);
    file.commit();
    const std::vector<std::byte> contents = place_->get("replaced");
    ASSERT_EQ(contents.size(), size_t{1} << 20);
    EXPECT_EQ(first_difference(contents.data(), 1 << 20, 32), uint64_t{1} << 20);
    EXPECT_EQ(write.post(), Status::kStale);
    EXPECT_THROW((void)agent_->transfer(in_memory(0, 16), in_file(file, 0, 16)), Error);
    const Transfer read = agent_->transfer(in_file(file, 0, 4096), in_memory(0, 4096));
    EXPECT_EQ(run(read), Status::kOk);
    EXPECT_THROW(file.commit(), Error);
    EXPECT_EQ(run(read), Status::kOk) << "refused for a commit that was none";
  }
  {
    const Region dropped = open("replaced", {.replace = true, .bytes = 1 << 20});
    ASSERT_EQ(move(Op::write, 0, dropped, 0, 4096), Status::kOk);
  }
  EXPECT_EQ(place_->get("replaced").size(), size_t{1} << 20);
  for (const std::string& name : place_->names())
    EXPECT_TRUE(name == "replaced" || name == "probe") << "left behind: " << name;
}

TEST_P(StorageTest, ACommitTellsAQueue) {
  const Region file = open("replaced", {.replace = true, .bytes = 4096});
  stamp_bytes(memory_.data(), 4096, 33);
  ASSERT_EQ(move(Op::write, 0, file, 0, 4096), Status::kOk);
  const Queue queue{*agent_};
  for (const bool first : {true, false}) {
    int mark = 0;
    queue.commit(file, 30s, &mark);
    std::array<Event, 1> events;
    while (queue.next(events) == 0) ASSERT_EQ(queue.wait(30s), Status::kOk);
    EXPECT_EQ(events[0].kind, uint32_t{TOWLINE_EVENT_COMMITTED});
    EXPECT_EQ(events[0].user_data, &mark);
    EXPECT_EQ(events[0].outcome() == Status::kOk, first) << events[0].error();
    EXPECT_EQ(events[0].error().empty(), first);
    EXPECT_EQ(first_difference(place_->get("replaced").data(), 4096, 33), 4096u);
  }
}

}  // namespace
}  // namespace towline::conformance

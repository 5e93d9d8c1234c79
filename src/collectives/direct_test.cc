// Copies straight out of other ranks' memory: when they are chosen, and what happens where they can't be.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "base/os/unique_fd.h"
#include "collectives/direct_choice.h"
#include "collectives/test_support.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint32_t kClass = 2;  // all_gather of 512 KiB and more

// One operation of that class after another, which take so long; returns how many of the last thousand were direct.
int direct_ones(DirectChoice& choice, SingleCopy setting, uint64_t staged_ns, uint64_t direct_ns) {
  int direct_ones = 0;
  constexpr int kOperations = 2000;
  for (int i = 0; i < kOperations; ++i) {
    const bool direct = choice.direct(kClass);
    choice.slowest_took(choice.say().took_ns, setting);
    choice.agree(choice.say().ways);
    choice.ended(kClass, direct, kBytes, direct ? direct_ns : staged_ns);
    if (i >= kOperations / 2) direct_ones += direct ? 1 : 0;
  }
  return direct_ones;
}

TEST(DirectChoice, ClassesAreBySizeAndOperation) {
  EXPECT_EQ(DirectChoice::class_of(DirectChoice::kAllGather, kBytes), kClass);
  EXPECT_EQ(DirectChoice::class_of(DirectChoice::kAllGather, DirectChoice::kLeastBytes), 0U);
  EXPECT_EQ(DirectChoice::class_of(DirectChoice::kAllGather, uint64_t{1} << 40), 4U);
  EXPECT_EQ(DirectChoice::class_of(DirectChoice::kAllToAll, uint64_t{1} << 40), 24U);
}

TEST(DirectChoice, TheQuickerWayIsTaken) {
  DirectChoice choice;
  choice.prove(true, SingleCopy::kAuto);
  EXPECT_GE(direct_ones(choice, SingleCopy::kAuto, 150'000, 73'000), 900);
  EXPECT_LE(direct_ones(choice, SingleCopy::kAuto, 48'000, 83'000), 100) << "the machine has changed";
}

TEST(DirectChoice, NothingIsDirectThatIsNotProved) {
  DirectChoice choice;
  EXPECT_EQ(direct_ones(choice, SingleCopy::kAlways, 150'000, 73'000), 0);
  choice.prove(false, SingleCopy::kAlways);
  EXPECT_EQ(direct_ones(choice, SingleCopy::kAlways, 150'000, 73'000), 0);
}

TEST(DirectChoice, SettingsComeBeforeTimes) {
  DirectChoice never;
  never.prove(true, SingleCopy::kNever);
  EXPECT_EQ(direct_ones(never, SingleCopy::kNever, 150'000, 73'000), 0);
  DirectChoice always;
  always.prove(true, SingleCopy::kAlways);
  EXPECT_EQ(direct_ones(always, SingleCopy::kAlways, 48'000, 83'000), 1000);
}

// all_gathers of two ranks until both ways have had their turn.
void gather_often(Communicator& ranks, const uint8_t* input, uint64_t bytes) {
  std::vector<uint8_t> out(2 * bytes);
  for (int i = 0; i < 40; ++i) {
    std::ranges::fill(out, uint8_t{0});
    do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_GATHER, TOWLINE_UINT8, bytes, input, out.data()));
    for (int rank = 0; rank < 2; ++rank)
      for (uint64_t at = 0; at < bytes; ++at)
        ASSERT_EQ(out[static_cast<uint64_t>(rank) * bytes + at], static_cast<uint8_t>(at * 7 + 1 + rank))
            << rank << " " << at << " " << i;
  }
}

void fill(uint8_t* memory, uint64_t bytes, int rank) {
  for (uint64_t at = 0; at < bytes; ++at)
    memory[at] = static_cast<uint8_t>(at * 7 + 1 + static_cast<uint64_t>(rank));
}

bool says(Communicator& ranks, const char* what) { return ranks.info_json().find(what) != std::string::npos; }

TEST(Direct, ARankThatMayNotBeReadKeepsAllWithTheStages) {
  auto store = std::make_shared<rendezvous::MemoryStore>();
  run_threads(2, [&](int rank) {
    World world;
    world.single_copy = rank == 1 ? "never" : "always";
    const auto ranks = join(world, rank, store);
    std::vector<uint8_t> in(100'000);
    fill(in.data(), in.size(), rank);
    gather_often(*ranks, in.data(), in.size());
    EXPECT_TRUE(says(*ranks, rank == 1 ? "\"single_copy\":\"never\"" : "can't read another's memory"))
        << ranks->info_json();
    ranks->close();
  });
}

// Secret memory can be read by its process alone.
TEST(Direct, MemoryThatOnlyItsRankCanReadGoesThroughTheStages) {
  constexpr uint64_t kSecret = 128 << 10;
  World world;
  world.single_copy = "always";
  const UniqueFd file(static_cast<int>(::syscall(SYS_memfd_secret, 0)));
  if (!file.valid()) GTEST_SKIP() << "no memfd_secret: " << std::strerror(errno);
  ASSERT_EQ(::ftruncate(file.get(), kSecret), 0);
  void* const secret = ::mmap(nullptr, kSecret, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(secret, MAP_FAILED);
  run_ranks(world, [&](Communicator& ranks) {
    std::vector<uint8_t> in(kSecret);
    fill(in.data(), kSecret, ranks.rank());
    gather_often(ranks, in.data(), kSecret);
    EXPECT_TRUE(says(ranks, "\"single_copy\":\"always\"")) << ranks.info_json();
    if (ranks.rank() == 1) std::memcpy(secret, in.data(), kSecret);
    gather_often(ranks, ranks.rank() == 1 ? static_cast<uint8_t*>(secret) : in.data(), kSecret);
    EXPECT_TRUE(says(ranks, "can't read another's memory")) << ranks.info_json();
  });
  ::munmap(secret, kSecret);
}

// The root has reduced the first pages in place when it meets one that it can't read.
TEST(Direct, AReduceInPlaceGoesOnWhereARankCantBeRead) {
  constexpr uint64_t kSecret = 128 << 10;
  const UniqueFd file(static_cast<int>(::syscall(SYS_memfd_secret, 0)));
  if (!file.valid()) GTEST_SKIP() << "no memfd_secret: " << std::strerror(errno);
  ASSERT_EQ(::ftruncate(file.get(), kSecret), 0);
  auto* const memory = static_cast<uint8_t*>(
      ::mmap(nullptr, 2 * kSecret, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_NE(::mmap(memory + kSecret, kSecret, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0),
            MAP_FAILED);
  World world;
  world.single_copy = "always";
  run_ranks(world, [&](Communicator& ranks) {
    std::vector<uint8_t> own(2 * kSecret);
    uint8_t* const in = ranks.rank() == 1 ? memory : own.data();
    for (int i = 0; i < 4; ++i) {
      fill(in, 2 * kSecret, ranks.rank());
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_REDUCE, TOWLINE_UINT8, 2 * kSecret, in, in));
      if (ranks.rank() != 0) continue;
      for (uint64_t at = 0; at < 2 * kSecret; ++at)
        ASSERT_EQ(in[at], static_cast<uint8_t>(2 * (at * 7 + 1) + 1)) << at << " " << i;
    }
    EXPECT_TRUE(says(ranks, "can't read another's memory")) << ranks.info_json();
  });
  ::munmap(memory, 2 * kSecret);
}

TEST(Direct, ASettingThatIsNoneIsRefused) {
  auto store = std::make_shared<rendezvous::MemoryStore>();
  World world;
  world.size = 1;
  world.single_copy = "sometimes";
  try {
    join(world, 0, store);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("none of auto, never, always"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace towline::collectives

#include "transports/cuda/copy_team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

namespace towline::cuda {
namespace {

// A list of pieces of these lengths, from one buffer into another in reverse order.
struct List {
  explicit List(const std::vector<uint64_t>& lengths) {
    const uint64_t bytes = std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
    from.resize(bytes);
    to.resize(bytes);
    for (uint64_t i = 0; i < bytes; ++i) from[i] = static_cast<uint8_t>(i * 31 + i / 251);
    uint64_t position = 0;
    for (const uint64_t length : lengths) {
      pieces.push_back({reinterpret_cast<uint64_t>(to.data() + bytes - position - length),
                        reinterpret_cast<uint64_t>(from.data() + position), position, length});
      position += length;
    }
    job.pieces = pieces.data();
    job.count = static_cast<uint32_t>(pieces.size());
    job.bytes = bytes;
  }
  [[nodiscard]] bool right() const {
    return std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
      return std::memcmp(reinterpret_cast<const void*>(piece.to), reinterpret_cast<const void*>(piece.from),
                         piece.length) == 0;
    });
  }

  std::vector<uint8_t> from;
  std::vector<uint8_t> to;
  std::vector<Piece> pieces;
  CopyTeam::Job job;
};

void finish(CopyTeam& team, CopyTeam::Job& job) {
  while (!team.look(job)) std::this_thread::yield();
}

class CopyTeamTest : public ::testing::TestWithParam<uint32_t> {};  // threads

INSTANTIATE_TEST_SUITE_P(Threads, CopyTeamTest, ::testing::Values(0, 1, 3));

TEST_P(CopyTeamTest, EveryPieceIsCopiedWhateverItsLength) {
  CopyTeam team(GetParam());
  for (const bool past_caches : {false, true}) {
    for (const auto& lengths :
         {std::vector<uint64_t>{}, std::vector<uint64_t>{1}, std::vector<uint64_t>(2048, 512),
          std::vector<uint64_t>{1 << 20}, std::vector<uint64_t>(31, 32 << 10),
          std::vector<uint64_t>{CopyTeam::kShareBytes, 1, 100000, 3, CopyTeam::kShareBytes - 1}}) {
      List list(lengths);
      list.job.past_caches = past_caches;
      team.begin(list.job);
      finish(team, list.job);
      EXPECT_TRUE(list.right()) << lengths.size();
    }
  }
  EXPECT_EQ(team.threads(), GetParam());
}

TEST_P(CopyTeamTest, ManyListsAtOnceAndAgainAreEachCopiedWhole) {
  CopyTeam team(GetParam());
  std::vector<std::unique_ptr<List>> lists;
  for (uint64_t i = 0; i < 8; ++i)
    lists.push_back(std::make_unique<List>(std::vector<uint64_t>(40, 4096 + i)));
  for (int round = 0; round < 50; ++round) {
    for (const auto& list : lists) {
      std::fill(list->to.begin(), list->to.end(), uint8_t{0});
      team.begin(list->job);
    }
    for (const auto& list : lists) finish(team, list->job);
    for (const auto& list : lists) ASSERT_TRUE(list->right()) << round;
  }
}

TEST(CopyTeam, WorkersShareIt) {
  CopyTeam team(2);
  std::vector<std::thread> workers;
  std::atomic<int> wrong{0};
  for (uint64_t worker = 0; worker < 3; ++worker) {
    workers.emplace_back([&, worker] {
      List list(std::vector<uint64_t>(20, 20000 + worker));
      for (int round = 0; round < 50; ++round) {
        std::fill(list.to.begin(), list.to.end(), uint8_t{0});
        team.begin(list.job);
        finish(team, list.job);
        wrong += list.right() ? 0 : 1;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace towline::cuda

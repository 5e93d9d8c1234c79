#include "transports/cuda/detour_wire.h"

#include <gtest/gtest.h>

#include "transports/cuda/piece_copier.h"

namespace towline::cuda {
namespace {

const Move kMove = {7, true, {0x1ffffffffULL, 0x7f0000000000, 8 << 20}, 1 << 20};

std::vector<uint8_t> encoded(const Move& move, const std::vector<Stretch>& stretches) {
  std::vector<uint8_t> message;
  encode(move, stretches, message);
  return message;
}

TEST(CudaDetourWire, WhatIsSaidIsHeard) {
  const std::vector<Stretch> stretches = {{3, 0x1000, 4096}, {4, 0x9000, 1}};
  const std::vector<uint8_t> message = encoded(kMove, stretches);
  ASSERT_TRUE(is_detour_message(message));
  EXPECT_TRUE(is_move(message));
  Move move;
  std::vector<Stretch> heard;
  ASSERT_TRUE(decode(message, move, heard));
  EXPECT_EQ(move.number, 7u);
  EXPECT_TRUE(move.to_owner);
  EXPECT_EQ(move.pool, kMove.pool);
  EXPECT_EQ(move.offset, kMove.offset);
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[1].key, 4u);
  EXPECT_EQ(heard[1].address, 0x9000u);
  EXPECT_EQ(heard[1].bytes, 1u);

  std::vector<uint8_t> answer;
  encode(Moved{9, Status::kIo, 700, "broken"}, answer);
  ASSERT_TRUE(is_detour_message(answer));
  EXPECT_FALSE(is_move(answer));
  Moved moved;
  ASSERT_TRUE(decode(answer, moved));
  EXPECT_EQ(moved.number, 9u);
  EXPECT_EQ(moved.status, Status::kIo);
  EXPECT_EQ(moved.code, 700);
  EXPECT_EQ(moved.text, "broken");
  EXPECT_FALSE(decode(message, moved));
  EXPECT_FALSE(decode(answer, move, heard));
}

TEST(CudaDetourWire, CutMessagesAreRefused) {
  const std::vector<uint8_t> message = encoded(kMove, {{3, 0x1000, 4096}});
  std::vector<uint8_t> answer;
  encode(Moved{9, Status::kOk, 0, "x"}, answer);
  Move move;
  Moved moved;
  std::vector<Stretch> heard;
  for (size_t bytes = 0; bytes < message.size(); ++bytes)
    EXPECT_FALSE(decode(std::span(message).first(bytes), move, heard)) << bytes;
  for (size_t bytes = 0; bytes < answer.size(); ++bytes)
    EXPECT_FALSE(decode(std::span(answer).first(bytes), moved)) << bytes;
}

TEST(CudaDetourWire, RequestsThatMakeNoSenseAreRefused) {
  Move move;
  std::vector<Stretch> heard;
  const auto refused = [&](const Move& asked, const std::vector<Stretch>& stretches) {
    return !decode(encoded(asked, stretches), move, heard);
  };
  EXPECT_FALSE(refused(kMove, {{1, 0, kDetourSlotBytes}}));
  EXPECT_TRUE(refused(kMove, {}));
  EXPECT_TRUE(refused(kMove, {{1, 0, 0}}));
  EXPECT_TRUE(refused(kMove, {{1, 0, kDetourSlotBytes + 1}}));
  EXPECT_TRUE(refused(kMove, {{1, 0, kDetourSlotBytes}, {1, 0, 1}}));
  EXPECT_TRUE(refused(kMove, {{1, UINT64_MAX, 2}}));
  EXPECT_TRUE(refused(kMove, std::vector<Stretch>(kMostStretches + 1, Stretch{1, 0, 1})));
  Move beyond = kMove;
  beyond.offset = kMove.pool.bytes;
  EXPECT_TRUE(refused(beyond, {{1, 0, 1}}));
  beyond.offset = UINT64_MAX;
  EXPECT_TRUE(refused(beyond, {{1, 0, 1}}));
}

}  // namespace
}  // namespace towline::cuda

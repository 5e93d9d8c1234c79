#include "transports/cuda/wire.h"

#include <gtest/gtest.h>

namespace towline::cuda {
namespace {

Answer an_answer() {
  Answer answer;
  answer.text = "well";
  answer.parts = 3;
  answer.region_address = 0x7f0000001000;
  answer.region_bytes = 1 << 20;
  answer.part.sharing = Sharing::kHandle;
  answer.part.address = 0x7f0000000000;
  answer.part.bytes = 2 << 20;
  answer.part.id = 17;
  answer.part.file_offset = 4096;
  answer.part.handle.fill(0xab);
  return answer;
}

TEST(CudaWire, WhatIsSaidIsHeard) {
  const Ask ask{{1, 2}, 3, 4};
  const auto heard = decode_ask(encode(ask));
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->incarnation[1], 2u);
  EXPECT_EQ(heard->key, 3u);
  EXPECT_EQ(heard->index, 4u);
  const Answer said = an_answer();
  const auto answer = decode_answer(encode(said));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->text, said.text);
  EXPECT_EQ(answer->parts, 3u);
  EXPECT_EQ(answer->region_bytes, said.region_bytes);
  EXPECT_EQ(answer->part.address, said.part.address);
  EXPECT_EQ(answer->part.id, 17u);
  EXPECT_EQ(answer->part.handle, said.part.handle);
  Token token;
  token.gpu.fill(7);
  const auto found = decode_token(encode(token));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->gpu, token.gpu);
}

TEST(CudaWire, WhatIsCutOrChangedIsRefused) {
  const std::vector<uint8_t> ask = encode(Ask{{1, 2}, 3, 4});
  const std::vector<uint8_t> answer = encode(an_answer());
  const std::vector<uint8_t> token = encode(Token{});
  for (size_t bytes = 0; bytes < ask.size(); ++bytes)
    EXPECT_FALSE(decode_ask(std::span(ask).first(bytes))) << bytes;
  for (size_t bytes = 0; bytes < answer.size(); ++bytes)
    EXPECT_FALSE(decode_answer(std::span(answer).first(bytes))) << bytes;
  for (size_t bytes = 0; bytes < token.size(); ++bytes)
    EXPECT_FALSE(decode_token(std::span(token).first(bytes))) << bytes;
  EXPECT_FALSE(decode_ask(answer));
  EXPECT_FALSE(decode_answer(ask));
  std::vector<uint8_t> longer = ask;
  longer.push_back(0);
  EXPECT_FALSE(decode_ask(longer)) << "of this version, with more behind it";
  longer[4] = 2;
  EXPECT_TRUE(decode_ask(longer)) << "of a later one";
}

TEST(CudaWire, PartsThatMakeNoSenseAreRefused) {
  for (const auto& spoil : std::vector<void (*)(Answer&)>{
           [](Answer& answer) { answer.part.bytes = 0; }, [](Answer& answer) { answer.parts = 0; },
           [](Answer& answer) { answer.parts = kMostParts + 1; },
           [](Answer& answer) { answer.part.bytes = UINT64_MAX; },
           [](Answer& answer) { answer.part.sharing = Sharing::kNone; },
           [](Answer& answer) { answer.part.sharing = static_cast<Sharing>(9); },
           [](Answer& answer) { answer.part.file_offset = UINT64_MAX - 4096; },
           // One is mapped, whatever it covers.
           [](Answer& answer) { answer.part.sharing = Sharing::kHostFile; }}) {
    Answer answer = an_answer();
    spoil(answer);
    EXPECT_FALSE(decode_answer(encode(answer)));
  }
  Answer refusal;
  refusal.status = Status::kPermissionDenied;
  refusal.text = "guarded";
  const auto heard = decode_answer(encode(refusal));
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->status, Status::kPermissionDenied);
  EXPECT_EQ(heard->text, "guarded");
}

}  // namespace
}  // namespace towline::cuda

#include "collectives/experts/messages.h"

#include <gtest/gtest.h>

namespace towline::collectives::experts {
namespace {

constexpr uint32_t kExperts = 3;

ExchangeMessage exchange() { return {7, 41, uint64_t{5} << 32, 99, {1, 0, 8}}; }
WordsMessage words() { return {7, 1, 41, 40, 10, 11, 12}; }

TEST(ExpertsMessages, ComeBackAsTheyWere) {
  const auto first = decode_exchange(encode(exchange()), kExperts);
  ASSERT_TRUE(first);
  EXPECT_EQ(encode(*first), encode(exchange()));
  const auto second = decode_words(encode(words()));
  ASSERT_TRUE(second);
  EXPECT_EQ(encode(*second), encode(words()));
}

TEST(ExpertsMessages, OfAnotherLengthAreNone) {
  for (std::vector<uint8_t> bytes : {encode(exchange()), encode(words())}) {
    const bool is_words = decode_words(bytes).has_value();
    bytes.push_back(0);
    EXPECT_FALSE(decode_words(bytes));
    EXPECT_FALSE(decode_exchange(bytes, kExperts));
    bytes.pop_back();
    EXPECT_EQ(decode_words(bytes).has_value(), is_words);
    while (!bytes.empty()) {
      bytes.pop_back();
      EXPECT_FALSE(decode_words(bytes));
      EXPECT_FALSE(decode_exchange(bytes, kExperts));
    }
  }
  EXPECT_FALSE(decode_exchange(encode(exchange()), kExperts + 1));
}

TEST(ExpertsMessages, AreNotTakenForOneAnother) {
  EXPECT_FALSE(decode_words(encode(exchange())));
  EXPECT_FALSE(decode_exchange(encode(words()), kExperts));
}

}  // namespace
}  // namespace towline::collectives::experts

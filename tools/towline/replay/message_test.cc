#include "replay/message.h"

#include <gtest/gtest.h>
#include <towline/towline.h>

#include "failure.h"

namespace tool::replay {
namespace {

TEST(Message, ReadyComesBackAsItWent) {
  const auto messages = encode_ready(7, {{{1, 512}, 3, {4, 5}}, {{2, 10}, 9, {6}}});
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(message_type(messages[0]), MessageType::kReady);
  const ReadyMessage ready = decode_ready(messages[0]);
  EXPECT_EQ(ready.part.request, 7u);
  ASSERT_EQ(ready.blocks.size(), 2u);
  EXPECT_EQ(ready.blocks[1].key, (BlockKey{2, 10}));
  EXPECT_EQ(ready.blocks[1].epoch, 9u);
  EXPECT_EQ(ready.blocks[0].pages, (std::vector<uint32_t>{4, 5}));
}

TEST(Message, LongOnesAreCutToNoticesAndPutTogetherInAnyOrder) {
  std::vector<WantedBlock> blocks;
  for (uint32_t index = 0; index < 500; ++index) blocks.push_back({index, std::vector<uint32_t>(512, index)});
  const auto messages = encode_want(1, blocks);
  EXPECT_GT(messages.size(), 10u);
  Assembly<WantedBlock> assembly;
  for (size_t at = messages.size(); at-- > 0;) {
    EXPECT_LE(messages[at].size(), size_t{TOWLINE_MAX_NOTICE_BYTES});
    WantMessage want = decode_want(messages[at]);
    EXPECT_EQ(assembly.add(want.part, want.blocks), at == 0);
    EXPECT_FALSE(assembly.add(want.part, want.blocks)) << "a repetition changes nothing";
  }
  const auto whole = assembly.take();
  ASSERT_EQ(whole.size(), 500u);
  for (uint32_t index = 0; index < 500; ++index) EXPECT_EQ(whole[index].index, index);
}

TEST(Message, AnEmptyListIsAMessageToo) {
  const auto messages = encode_want(3, {});
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(decode_want(messages[0]).blocks.empty());
}

TEST(Message, WhatIsCutShortOrForeignIsRefused) {
  const std::string ready = encode_ready(7, {{{1, 512}, 3, {4, 5}}})[0];
  for (size_t size = 0; size < ready.size(); ++size) {
    if (size == 14) continue;  // a message about no blocks
    EXPECT_THROW((void)decode_ready(std::string_view{ready}.substr(0, size)), Failure) << size;
  }
  EXPECT_THROW((void)decode_want(ready), Failure);
  EXPECT_THROW((void)message_type("hello"), Failure);
  EXPECT_THROW((void)message_type(""), Failure);
  std::string other = ready;
  other[1] = 9;
  EXPECT_THROW((void)decode_ready(other), Failure);
}

}  // namespace
}  // namespace tool::replay

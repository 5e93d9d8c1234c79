// Descriptors, lists, serialisation, names.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include <nixl.h>
#include <serdes/serdes.h>

namespace {

TEST(Descriptors, AreOrderedComparedAndNested) {
  const nixlBasicDesc whole(0x1000, 0x100, 1);
  EXPECT_TRUE(whole.covers({0x1000, 0x100, 1}));
  EXPECT_TRUE(whole.covers({0x1010, 0x10, 1}));
  EXPECT_FALSE(whole.covers({0x1010, 0x100, 1}));
  EXPECT_FALSE(whole.covers({0x1010, 0x10, 2}));
  EXPECT_TRUE(whole.overlaps({0x10ff, 1, 1}));
  EXPECT_FALSE(whole.overlaps({0x1100, 1, 1}));
  EXPECT_FALSE(whole.overlaps({0x1000, 1, 2}));
  EXPECT_LT(nixlBasicDesc(9, 9, 0), nixlBasicDesc(1, 1, 1));
  EXPECT_LT(nixlBasicDesc(1, 9, 1), nixlBasicDesc(2, 1, 1));
  EXPECT_LT(nixlBasicDesc(1, 1, 1), nixlBasicDesc(1, 2, 1));
  EXPECT_TRUE(whole != nixlBasicDesc(0x1000, 0x101, 1));
  EXPECT_FALSE(nixlBlobDesc(whole, "a") == nixlBlobDesc(whole, "b"));
  EXPECT_FALSE(nixlRemoteDesc(whole, "a") == nixlRemoteDesc(whole, "b"));
}

TEST(Descriptors, GoThroughBytes) {
  const nixlBasicDesc basic(1, 2, 3);
  EXPECT_EQ(basic.serialize().size(), 24U);
  EXPECT_EQ(nixlBasicDesc(basic.serialize()), basic);
  EXPECT_EQ(nixlBasicDesc(nixl_blob_t("short")), nixlBasicDesc(0, 0, 0));
  const nixlBlobDesc blob(1, 2, 3, std::string("a\0b", 3));
  EXPECT_EQ(nixlBlobDesc(blob.serialize()), blob);
  const nixlRemoteDesc remote(1, 2, 3, "decode-0");
  EXPECT_EQ(nixlRemoteDesc(remote.serialize()), remote);
}

TEST(Lists, BehaveLikeVectors) {
  nixl_reg_dlist_t list(VRAM_SEG);
  EXPECT_TRUE(list.isEmpty());
  list.addDesc(nixlBlobDesc(1, 10, 0, "one"));
  list.emplace(uintptr_t{2}, size_t{20}, uint64_t{0}, "two");
  ASSERT_EQ(list.descCount(), 2);
  EXPECT_EQ(list.getType(), VRAM_SEG);
  EXPECT_EQ(list.getIndex({2, 20, 0}), 1);
  EXPECT_EQ(list.getIndex({2, 21, 0}), NIXL_ERR_NOT_FOUND);
  const nixl_xfer_dlist_t trimmed = list.trim();
  EXPECT_EQ(trimmed.descCount(), 2);
  EXPECT_EQ(trimmed[1], nixlBasicDesc(2, 20, 0));
  EXPECT_THROW(list.remDesc(2), std::out_of_range);
  EXPECT_THROW(list.remDesc(-1), std::out_of_range);
  list.remDesc(0);
  EXPECT_EQ(list[0].metaInfo, "two");
  list.resize(3);
  EXPECT_EQ(list.descCount(), 3);
  list.clear();
  EXPECT_TRUE(list.isEmpty());
  EXPECT_EQ(nixl_xfer_dlist_t(DRAM_SEG, 4).descCount(), 4);
  EXPECT_NE(trimmed.to_string(true).find("1 of 20 bytes"), std::string::npos);
}

template <class List>
void expect_round_trip(const List& list) {
  nixlSerDes writer;
  ASSERT_EQ(list.serialize(&writer), NIXL_SUCCESS);
  nixlSerDes reader;
  ASSERT_EQ(reader.importStr(writer.exportStr()), NIXL_SUCCESS);
  EXPECT_TRUE(List(&reader) == list);
}

TEST(Lists, GoThroughBytes) {
  nixl_xfer_dlist_t basic(FILE_SEG);
  expect_round_trip(basic);
  basic.emplace(uintptr_t{1}, size_t{2}, uint64_t{3});
  basic.emplace(uintptr_t{4}, size_t{5}, uint64_t{6});
  expect_round_trip(basic);
  nixl_reg_dlist_t blobs(DRAM_SEG);
  blobs.addDesc(nixlBlobDesc(1, 2, 3, ""));
  blobs.addDesc(nixlBlobDesc(4, 5, 6, "meta|info"));
  expect_round_trip(blobs);
  nixlSerDes writer;
  EXPECT_EQ(nixl_remote_dlist_t(DRAM_SEG).serialize(&writer), NIXL_ERR_INVALID_PARAM);
}

TEST(Lists, ThatAreCutOffAreEmpty) {
  nixl_reg_dlist_t blobs(DRAM_SEG);
  for (uint64_t i = 0; i < 3; ++i) blobs.addDesc(nixlBlobDesc(i, 2, 3, "meta"));
  nixlSerDes writer;
  ASSERT_EQ(blobs.serialize(&writer), NIXL_SUCCESS);
  const std::string bytes = writer.exportStr();
  for (size_t size = 11; size < bytes.size(); ++size) {
    nixlSerDes reader;
    ASSERT_EQ(reader.importStr(bytes.substr(0, size)), NIXL_SUCCESS);
    EXPECT_TRUE(nixl_reg_dlist_t(&reader).isEmpty()) << "cut to " << size;
  }
  // Another kind of list.
  nixlSerDes reader;
  ASSERT_EQ(reader.importStr(bytes), NIXL_SUCCESS);
  EXPECT_TRUE(nixl_xfer_dlist_t(&reader).isEmpty());
}

TEST(Serdes, GivesValuesByTagInOrder) {
  nixlSerDes writer;
  const uint64_t number = 42;
  ASSERT_EQ(writer.addStr("name", "value"), NIXL_SUCCESS);
  ASSERT_EQ(writer.addBuf("n", &number, sizeof number), NIXL_SUCCESS);
  nixlSerDes reader;
  EXPECT_EQ(reader.importStr("something else"), NIXL_ERR_MISMATCH);
  ASSERT_EQ(reader.importStr(writer.exportStr()), NIXL_SUCCESS);
  EXPECT_EQ(reader.getStr("other"), "");
  EXPECT_EQ(reader.getStr("name"), "value");
  EXPECT_EQ(reader.getBufLen("n"), 8);
  uint64_t read = 0;
  EXPECT_EQ(reader.getBuf("n", &read, 4), NIXL_ERR_MISMATCH);
  EXPECT_EQ(reader.getBuf("n", &read, sizeof read), NIXL_SUCCESS);
  EXPECT_EQ(read, 42U);
  EXPECT_EQ(reader.getBufLen("n"), -1);
}

TEST(Names, OfEnumerators) {
  EXPECT_EQ(nixlEnumStrings::memTypeStr(FILE_SEG), "FILE_SEG");
  EXPECT_EQ(nixlEnumStrings::memTypeStr(static_cast<nixl_mem_t>(9)), "BAD_SEG");
  EXPECT_EQ(nixlEnumStrings::xferOpStr(NIXL_WRITE), "WRITE");
  EXPECT_EQ(nixlEnumStrings::statusStr(NIXL_ERR_NOT_POSTED), "NIXL_ERR_NOT_POSTED");
  EXPECT_EQ(nixlEnumStrings::statusStr(NIXL_ERR_NO_TELEMETRY), "NIXL_ERR_NO_TELEMETRY");
  EXPECT_EQ(nixlEnumStrings::statusStr(NIXL_IN_PROG), "NIXL_IN_PROG");
  EXPECT_EQ(nixlEnumStrings::statusStr(static_cast<nixl_status_t>(-13)), "BAD_STATUS");
}

TEST(Configuration, HasItsDefaults) {
  const nixlAgentConfig config;
  EXPECT_FALSE(config.useProgThread);
  EXPECT_FALSE(config.useListenThread);
  EXPECT_EQ(config.listenPort, 8888);
  EXPECT_EQ(config.lthrDelay, 100000U);
  EXPECT_EQ(config.etcdWatchTimeout, std::chrono::seconds{5});
  const nixlAgentConfig given(true, true, 7000, nixl_thread_sync_t::NIXL_THREAD_SYNC_RW, 2, 1, 2, true);
  EXPECT_TRUE(given.useProgThread && given.useListenThread && given.captureTelemetry);
  EXPECT_EQ(given.listenPort, 7000);
}

}  // namespace

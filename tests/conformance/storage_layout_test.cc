// Files and objects as named, shaped regions: parts of them by their place in a layout.
#include "storage_fixture.h"

namespace towline::conformance {
namespace {

constexpr uint64_t kLayers = 4;
constexpr uint64_t kPagesEach = 16;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kAll = kLayers * kPagesEach * kPageBytes;

class StorageLayoutTest : public StorageTest {
 protected:
  // A cache of the same shape in memory.
  [[nodiscard]] Region cache() {
    return agent_->register_memory(dram(memory_.data(), kAll),
                                   {.name = "kv", .layout = paged(kLayers, kPagesEach, kPageBytes)});
  }
  [[nodiscard]] const std::byte* page_at(uint64_t layer, uint64_t page) const {
    return memory_.data() + (layer * kPagesEach + page) * kPageBytes;
  }
  static uint64_t offset_of(uint64_t layer, uint64_t page) {
    return (layer * kPagesEach + page) * kPageBytes;
  }
  [[nodiscard]] static StorageOptions shaped(StorageOptions options = {}) {
    options.name = "spilled";
    options.layout = paged(kLayers, kPagesEach, kPageBytes);
    return options;
  }
  template <class Call>
  static std::string refusal(Call&& call, Status* code = nullptr) {
    try {
      (void)call();
    } catch (const Error& error) {
      if (code != nullptr) *code = error.code();
      return error.what();
    }
    return {};
  }
};

TEST_P(StorageLayoutTest, PagesAreReadByTheirPlace) {
  make_file("spilled", kAll, 31);
  const Region file = open("spilled", shaped());
  const Region kv = cache();
  const std::vector<uint32_t> from = {3, 15, 0};
  const std::vector<uint32_t> to = {1, 2, 14};
  const Post post = agent_->copy(file[2][from], kv[1][to]);
  ASSERT_EQ(post.wait(30s), Status::kOk) << post.error() << last_error();
  for (size_t i = 0; i < from.size(); ++i)
    EXPECT_EQ(first_difference(page_at(1, to[i]), kPageBytes, 31, offset_of(2, from[i])), kPageBytes) << i;
  const Post all = agent_->copy(file.view(), kv.view());
  ASSERT_EQ(all.wait(30s), Status::kOk) << all.error() << last_error();
  EXPECT_EQ(first_difference(memory_.data(), kAll, 31), kAll);
  EXPECT_EQ(file.view().name(), "spilled");
}

TEST_P(StorageLayoutTest, AFileHasTheLayoutsSizeAndItsPagesAreWritten) {
  FILES_ONLY("a WRITE within one keeps at least 5 MiB before it");
  const Region file = open("new", shaped({.create = true}));
  const Region kv = cache();
  stamp_bytes(memory_.data(), kAll, 32);
  ASSERT_EQ(agent_->copy(kv[3][15u], file[3][15u]).wait(30s), Status::kOk) << last_error();
  ASSERT_EQ(agent_->copy(kv[0], file[0]).wait(30s), Status::kOk) << last_error();
  std::memset(memory_.data(), 0, kAll);
  ASSERT_EQ(agent_->copy(file.view(), kv.view()).wait(30s), Status::kOk) << last_error();
  EXPECT_EQ(first_difference(page_at(3, 15), kPageBytes, 32, offset_of(3, 15)), kPageBytes);
  EXPECT_EQ(first_difference(memory_.data(), kPagesEach * kPageBytes, 32), kPagesEach * kPageBytes);
  EXPECT_TRUE(support::all_are(page_at(1, 0), 2 * kPagesEach * kPageBytes, std::byte{0}));
}

TEST_P(StorageLayoutTest, WhatDoesNotFitIsRefusedWithTheReason) {
  make_file("short", kAll - 1, 33);
  Status code = Status::kOk;
  std::string why = refusal([&] { return open("short", shaped()); }, &code);
  EXPECT_EQ(code, Status::kInvalidArgument);
  EXPECT_NE(why.find("the layout of region 'spilled' ends beyond the region's 262143 bytes"),
            std::string::npos)
      << why;
  StorageOptions options = shaped();
  options.name.clear();
  why = refusal([&] { return open("short", options); });
  EXPECT_NE(why.find("options.name is not"), std::string::npos) << why;
  make_file("spilled", kAll, 34);
  const Region first = open("spilled", shaped());
  why = refusal([&] { return open("spilled", shaped()); }, &code);
  EXPECT_EQ(code, Status::kAlreadyExists) << why;
  // Other shapes are not copied blindly.
  const Region kv = agent_->register_memory(
      dram(memory_.data(), kAll), {.name = "kv", .layout = paged(kLayers, kPagesEach / 2, 2 * kPageBytes)});
  why = refusal([&] { return agent_->copy(first.view(), kv.view()); }, &code);
  EXPECT_EQ(code, Status::kMismatch) << why;
}

TEST_P(StorageLayoutTest, PeersAreNotTold) {
  make_file("spilled", kAll, 35);
  const Region file = open("spilled", shaped());
  const Agent other("other", {.listen = "none"});
  const Peer peer = other.add_peer(agent_->metadata());
  Status code = Status::kOk;
  (void)refusal([&] { return peer.region("spilled"); }, &code);
  EXPECT_EQ(code, Status::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(All, StorageLayoutTest, ::testing::ValuesIn(stores()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace towline::conformance

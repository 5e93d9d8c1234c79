// Arrays of structs of another version of the headers: callers give the size of their elements.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "towline/collectives.h"
#include "towline/layout.h"
#include "towline/storage.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

struct NewerBlocks {
  towline_blocks_t blocks;
  uint64_t later;
};

struct NewerInfo {
  towline_region_info_t info;
  uint64_t later;
};

class ElementSizes : public ::testing::Test {
 protected:
  Agent agent_{"owner", {.listen = "none", .backends = "memory"}};
  std::vector<std::byte> memory_ = std::vector<std::byte>(8192);
  Region region_ = agent_.register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kRead});

  int32_t make(const void* blocks, size_t each, size_t count, uint64_t* total) {
    towline_block_list_t* list = nullptr;
    const int32_t status = towline_block_list_create(
        agent_.native(), nullptr, static_cast<const towline_blocks_t*>(blocks), each, count, &list);
    if (status == TOWLINE_OK) *total = towline_block_list_bytes(list);
    towline_block_list_destroy(list);
    return status;
  }
};

TEST_F(ElementSizes, BlocksOfANewerVersionAreTakenIfTheySetNothingNew) {
  std::array<NewerBlocks, 2> blocks = {};
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].blocks.address = reinterpret_cast<uint64_t>(memory_.data()) + i * 4096;
    blocks[i].blocks.length = 1024 * (i + 1);
  }
  uint64_t total = 0;
  ASSERT_EQ(make(blocks.data(), sizeof blocks[0], blocks.size(), &total), TOWLINE_OK) << towline_last_error();
  EXPECT_EQ(total, 3072u);
  blocks[1].later = 7;
  EXPECT_EQ(make(blocks.data(), sizeof blocks[0], blocks.size(), &total), TOWLINE_UNSUPPORTED);
  EXPECT_NE(std::string(towline_last_error()).find("blocks[1]"), std::string::npos) << towline_last_error();
}

TEST_F(ElementSizes, ALayoutOfANewerVersionIsTakenIfItSetsNothingNew) {
  struct {
    towline_layout_t layout = {};
    uint64_t later = 0;
  } newer;
  newer.layout.struct_size = sizeof newer;
  newer.layout.element_bytes = 1024;
  newer.layout.dimensions = 1;
  newer.layout.count[0] = 4;
  towline_region_options_t options = {};
  options.struct_size = sizeof options;
  options.name = "paged";
  options.layout = &newer.layout;
  towline_region_t* region = nullptr;
  newer.later = 7;
  EXPECT_EQ(towline_region_register(agent_.native(), memory_.data(), 4096, &options, &region),
            TOWLINE_UNSUPPORTED);
  EXPECT_NE(last_error().find("options.layout sets a field"), std::string_view::npos) << last_error();
  newer.later = 0;
  ASSERT_EQ(towline_region_register(agent_.native(), memory_.data(), 4096, &options, &region), TOWLINE_OK)
      << last_error();
  EXPECT_EQ(towline_region_deregister(region, TOWLINE_FOREVER), TOWLINE_OK);
}

TEST_F(ElementSizes, ASizeThatNoVersionHadIsRefused) {
  towline_blocks_t block = {};
  uint64_t total = 0;
  for (const size_t each : {size_t{0}, size_t{8}, sizeof block - 8, size_t{1} << 20})
    EXPECT_EQ(make(&block, each, 1, &total), TOWLINE_INVALID_ARGUMENT) << each;
  towline_region_info_t info = {};
  EXPECT_EQ(towline_region_info(region_.native(), &info, 8), TOWLINE_INVALID_ARGUMENT);
}

TEST_F(ElementSizes, FieldsOfANewerVersionAreZeroInWhatIsGiven) {
  NewerInfo info;
  std::memset(&info, 0xff, sizeof info);
  ASSERT_EQ(towline_region_info(region_.native(), &info.info, sizeof info), TOWLINE_OK);
  EXPECT_EQ(info.info.address, reinterpret_cast<uint64_t>(memory_.data()));
  EXPECT_EQ(info.info.bytes, memory_.size());
  EXPECT_EQ(info.later, 0u);
}

TEST_F(ElementSizes, ThePeersRegionsKeepTheCallersStep) {
  const Region second = agent_.register_memory(dram(memory_.data(), 4096), {.access = Access::kRead});
  const Agent other{"other", {.listen = "none", .backends = "memory"}};
  const Peer peer = other.add_peer(agent_.metadata());
  std::array<NewerInfo, 3> all;
  std::memset(all.data(), 0xff, sizeof all);
  size_t count = 2;
  ASSERT_EQ(towline_peer_regions(peer.native(), &all[0].info, sizeof all[0], &count), TOWLINE_OK);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(all[0].info.bytes, 8192u);
  EXPECT_EQ(all[1].info.bytes, 4096u);
  EXPECT_EQ(all[1].later, 0u);
  EXPECT_EQ(all[2].later, UINT64_MAX);  // room that was not offered
}

struct NewerNotice {
  towline_notice_t notice;
  uint64_t later;
};

struct NewerCompletion {
  towline_completion_t completion;
  uint64_t later;
};

TEST_F(ElementSizes, NoticesAndCompletionsKeepTheCallersSize) {
  const Agent other{"other", {.listen = "none", .backends = "memory"}};
  const Peer peer = other.add_peer(agent_.metadata());
  std::vector<std::byte> mine(8192);
  const Region here = other.register_memory(dram(mine.data(), mine.size()));
  const BlockList from = peer.block_list(Blocks::at(memory_.data(), 8192));
  const BlockList to = other.block_list(Blocks::at(mine.data(), 8192));
  std::array<Transfer, 2> moves = {other.transfer(from, to, {.notice = "read", .queue_completion = true}),
                                   other.transfer(from, to, {.notice = "read", .queue_completion = true})};
  std::array<NewerCompletion, 3> ends;
  std::memset(ends.data(), 0xff, sizeof ends);
  for (const Transfer& move : moves) {
    Status status = move.post();
    for (const Deadline deadline{std::chrono::seconds{20}};
         status == Status::kAgain && deadline.remaining_ns() != 0;)
      status = move.post();
    ASSERT_FALSE(is_error(status)) << towline_last_error();
    ASSERT_EQ(move.wait(std::chrono::seconds{20}), Status::kOk);
  }
  int32_t count = 0;
  while (count < 2 && other.wait(std::chrono::seconds{20}) == Status::kOk)
    count += towline_completions_pull(other.native(), &ends[count].completion, 3 - count, sizeof ends[0]);
  ASSERT_EQ(count, 2);
  EXPECT_EQ(ends[1].completion.bytes, 8192u);
  EXPECT_EQ(ends[1].later, 0u);
  EXPECT_EQ(ends[2].later, UINT64_MAX);
  EXPECT_EQ(towline_completions_pull(other.native(), &ends[0].completion, 1, 16), TOWLINE_INVALID_ARGUMENT);

  NewerNotice notice;
  std::memset(&notice, 0xff, sizeof notice);
  EXPECT_EQ(towline_notice_receive(agent_.native(), &notice.notice, 8), TOWLINE_INVALID_ARGUMENT);
  while (towline_notice_receive(agent_.native(), &notice.notice, sizeof notice) == TOWLINE_AGAIN)
    ASSERT_EQ(agent_.wait(std::chrono::seconds{20}), Status::kOk);
  EXPECT_EQ(notice.notice.bytes, 4u);
  EXPECT_EQ(notice.notice.tag, 0u);
  EXPECT_EQ(notice.later, 0u);
  towline_notice_release(agent_.native(), &notice.notice);
  EXPECT_EQ(notice.notice.held, nullptr);
}

TEST(AgentAddress, TellsHowMuchRoomItNeeds) {
  const Agent agent{"listens", {.listen = "127.0.0.1:0"}};
  size_t needed = 0;
  ASSERT_EQ(towline_agent_address(agent.native(), nullptr, 0, &needed), TOWLINE_OK);
  EXPECT_EQ(needed, agent.address().size() + 1);
  std::string text(needed, 'x');
  ASSERT_EQ(towline_agent_address(agent.native(), text.data(), needed, nullptr), TOWLINE_OK);
  EXPECT_EQ(text.c_str(), agent.address());
  EXPECT_NE(towline_agent_address(agent.native(), text.data(), 3, nullptr), TOWLINE_OK);
}

// Exported, not inline: other languages call them through the library.
TEST(CollectivesByName, AreFunctionsOfTheLibrary) {
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.size = 1;
  options.store = nullptr;
  options.bootstrap = "tcp://127.0.0.1:0";
  options.backend = "fake";
  towline_communicator_t* world = nullptr;
  ASSERT_EQ(towline_communicator_create(&options, &world), TOWLINE_OK) << towline_last_error();
  float in = 3;
  float out = 0;
  int32_t (*volatile all_reduce)(towline_communicator_t*, const void*, void*, uint64_t, uint32_t, uint32_t,
                                 const towline_collective_options_t*, towline_work_t**) = towline_all_reduce;
  EXPECT_EQ(all_reduce(world, &in, &out, 1, TOWLINE_FLOAT32, TOWLINE_REDUCE_SUM, nullptr, nullptr),
            TOWLINE_OK)
      << towline_last_error();
  EXPECT_EQ(towline_barrier(world, nullptr, nullptr), TOWLINE_OK);
  EXPECT_EQ(towline_communicator_destroy(world), TOWLINE_OK);
}

TEST_F(ElementSizes, StorageIsNotDescribedInAStructWithoutASize) {
  for (const size_t size : {size_t{0}, size_t{7}, size_t{1} << 20}) {
    towline_storage_info_t info = {};
    info.struct_size = size;
    EXPECT_EQ(towline_storage_query(agent_.native(), "file:/", &info), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(towline_last_error()).find("info->struct_size"), std::string::npos);
  }
}

}  // namespace
}  // namespace towline

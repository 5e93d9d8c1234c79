// Promises of named, shaped regions, through the public API.
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

// Both sides have a paged cache named "kv", with as many pages as each likes.
class LayoutTest : public TransportTest {
 protected:
  static constexpr uint32_t kLayers = 4;
  static constexpr uint32_t kMyPages = 8;
  static constexpr uint32_t kTheirPages = 16;

  void SetUp() override {
    TransportTest::SetUp();
    stamp(left_memory_->data(), left_memory_->size(), 1);
    mine_ = std::make_unique<Region>(left_->register_memory(
        view(left_memory_->data(), left_memory_->size()),
        {.access = Access::kAll, .name = "kv", .layout = paged(kLayers, kMyPages, kBlock)}));
    theirs_ = std::make_unique<Region>(right_->register_memory(
        view(right_memory_->data(), right_memory_->size()),
        {.access = Access::kAll, .name = "kv", .layout = paged(kLayers, kTheirPages, kBlock)}));
    (void)left_->add_peer(right_->metadata());
  }
  void TearDown() override {
    mine_.reset();
    theirs_.reset();
    TransportTest::TearDown();
  }

  [[nodiscard]] View there() const { return peer_->region("kv"); }
  [[nodiscard]] bool page_moved(uint32_t layer, uint32_t my_page, uint32_t their_page) const {
    return std::memcmp(left_memory_->data() + (layer * kMyPages + my_page) * kBlock,
                       right_memory_->data() + (layer * kTheirPages + their_page) * kBlock, kBlock) == 0;
  }
  [[nodiscard]] uint64_t pages_written() const {
    uint64_t count = 0;
    for (uint64_t page = 0; page < kBlocks; ++page) {
      const std::byte* const at = right_memory_->data() + page * kBlock;
      count += std::any_of(at, at + kBlock, [](std::byte byte) { return byte != std::byte{0}; }) ? 1 : 0;
    }
    return count;
  }

  std::unique_ptr<Region> mine_;
  std::unique_ptr<Region> theirs_;
};

template <class Call>
std::string why_not(Status expected, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST_P(LayoutTest, PagesOfALayerGoWhereTheirLayoutSays) {
  const std::vector<uint32_t> here = {5, 0, 7};
  const std::vector<uint32_t> to = {15, 2, 9};
  const Post post = left_->copy((*mine_)[2][here], there()[2][to]);
  ASSERT_EQ(post.wait(20s), Status::kOk) << post.error();
  for (uint32_t i = 0; i < here.size(); ++i) EXPECT_TRUE(page_moved(2, here[i], to[i])) << i;
  EXPECT_EQ(pages_written(), here.size());
}

TEST_P(LayoutTest, PagesOfEveryLayerAreOneSelection) {
  const std::vector<int64_t> here = {1, 6};
  const std::vector<uint32_t> to = {14, 3};
  const Post post = left_->copy(mine_->view().select(1, here), there().select(1, to));
  ASSERT_EQ(post.wait(20s), Status::kOk) << post.error();
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    for (uint32_t i = 0; i < here.size(); ++i)
      EXPECT_TRUE(page_moved(layer, static_cast<uint32_t>(here[i]), to[i])) << layer << " " << i;
  EXPECT_EQ(pages_written(), kLayers * here.size());
}

TEST_P(LayoutTest, RangesAndSingleElementsAreElementsToo) {
  const View first = mine_->view()[Range{1, 1, 2}];
  EXPECT_EQ(first.shape(), (std::vector<uint64_t>{2, kMyPages}));
  ASSERT_EQ(left_->copy(first[Range{0, 2, 4}], there()[Range{1, 1, 2}][Range{3, 1, 4}]).wait(20s),
            Status::kOk);
  for (uint32_t layer = 1; layer < 3; ++layer)
    for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(page_moved(layer, 2 * i, 3 + i)) << layer << " " << i;
  ASSERT_EQ(left_->copy((*mine_)[3][4], there()[3][11]).wait(20s), Status::kOk);
  EXPECT_TRUE(page_moved(3, 4, 11));
  EXPECT_EQ(pages_written(), 9u);
}

TEST_P(LayoutTest, AGroupTakesALayerAtATime) {
  const std::vector<uint32_t> pages = {0, 3, 6};
  const Group push = left_->group({.notice = "req-17", .deadline = 20s});
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    Status status = Status::kAgain;
    while (status == Status::kAgain) status = push.copy((*mine_)[layer][pages], there()[layer][pages]);
    ASSERT_FALSE(is_error(status)) << last_error();
  }
  push.close();
  ASSERT_EQ(push.wait(20s), Status::kOk) << push.error();
  EXPECT_EQ(next_notice(*right_).text(), "req-17");
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    for (const uint32_t page : pages) EXPECT_TRUE(page_moved(layer, page, page)) << layer << " " << page;
}

TEST_P(LayoutTest, OtherShapesAreRefusedUnlessRecut) {
  const std::string counts = why_not(Status::kMismatch, [&] { (void)left_->copy(mine_->view(), there()); });
  EXPECT_NE(counts.find("4 x 8"), std::string::npos) << counts;
  EXPECT_NE(counts.find("4 x 16"), std::string::npos) << counts;

  const Region other = right_->register_memory(
      view(right_memory_->data(), right_memory_->size()),
      {.access = Access::kAll, .name = "half pages", .layout = paged(kLayers, kMyPages * 2, kBlock / 2)});
  (void)left_->add_peer(right_->metadata());
  const View halves = peer_->region("half pages");
  const std::string elements =
      why_not(Status::kMismatch, [&] { (void)left_->plan(mine_->view().list(), halves.list()); });
  EXPECT_NE(elements.find("region 'kv' of this agent has 4 x 8 elements of 4096 bytes"), std::string::npos)
      << elements;
  EXPECT_NE(elements.find("region 'half pages' of peer 'right' has 4 x 16 elements of 2048 bytes"),
            std::string::npos)
      << elements;
  EXPECT_EQ(pages_written(), 0u);

  const Plan recut = left_->plan(mine_->view().list(), halves.list(), {.recut = true});
  ASSERT_EQ(recut.post().wait(20s), Status::kOk);
  EXPECT_EQ(std::memcmp(left_memory_->data(), right_memory_->data(), kLayers * kMyPages * kBlock), 0);
}

TEST_P(LayoutTest, WholeListsOfOtherCountsAreRefusedAndPicksAreNot) {
  const Plan plan = left_->plan(mine_->view().list(), there().list());
  const Post whole = plan.post();
  EXPECT_EQ(whole.wait(), Status::kMismatch);
  EXPECT_NE(std::string(last_error()).find("pick blocks of both"), std::string::npos) << last_error();
  const std::vector<uint32_t> one = {9};
  EXPECT_EQ(plan.post({.from = one, .to = one}).wait(20s), Status::kOk);
}

TEST_P(LayoutTest, IndicesOutOfRangeAreNamed) {
  EXPECT_NE(why_not(Status::kOutOfRange, [&] { (void)there()[4]; }).find("dimension 0 has 4"),
            std::string::npos);
  EXPECT_NE(why_not(Status::kOutOfRange, [&] { (void)there()[0][-1]; }).find("index -1"), std::string::npos);
  EXPECT_NE(why_not(Status::kOutOfRange, [&] { (void)there()[0][0][0]; }).find("narrowed already"),
            std::string::npos);
  EXPECT_NE(why_not(Status::kOutOfRange,
                    [&] {
                      (void)there()[0][Range{8, 1, 9}];
                    })
                .find("leaves dimension 1"),
            std::string::npos);
  const std::vector<uint32_t> wrong = {0, kTheirPages};
  const std::vector<uint32_t> right = {0, 1};
  const std::string why =
      why_not(Status::kOutOfRange, [&] { (void)left_->copy((*mine_)[1][right], there()[1][wrong]); });
  EXPECT_NE(why.find("dimension 1 has 16 elements: index 16 at position 1 of 2"), std::string::npos) << why;
  EXPECT_EQ(pages_written(), 0u);
}

TEST_P(LayoutTest, ANameIsGivenOnceAtATime) {
  const MemoryView memory = view(right_memory_->data(), right_memory_->size());
  const std::string why = why_not(Status::kAlreadyExists, [&] {
    (void)right_->register_memory(memory, {.access = Access::kAll, .name = "kv"});
  });
  EXPECT_NE(why.find("is named 'kv' already"), std::string::npos) << why;
  ASSERT_EQ(theirs_->deregister(20s), Status::kOk);
  theirs_ = std::make_unique<Region>(right_->register_memory(
      memory, {.access = Access::kAll,
               .name = "kv",
               .layout = Layout::strided(kBlock, {2, 3}, {64 * kBlock, 2 * kBlock})}));
  (void)left_->add_peer(right_->metadata());
  const View later = there();  // the later one, whether or not the end of the first is known here
  EXPECT_EQ(later.shape(), (std::vector<uint64_t>{2, 3}));
  ASSERT_EQ(left_->copy((*mine_)[0][0], later[1][2]).wait(20s), Status::kOk);
  EXPECT_EQ(std::memcmp(left_memory_->data(), right_memory_->data() + 68 * kBlock, kBlock), 0);
}

TEST_P(LayoutTest, UnknownNamesAreAnsweredWithThoseThereAre) {
  const std::string why = why_not(Status::kNotFound, [&] { (void)peer_->region("vk"); });
  EXPECT_NE(why.find("peer 'right' has no region named 'vk'; it has 'kv'"), std::string::npos) << why;
}

TEST_P(LayoutTest, WrongLayoutsAreRefusedWithWhatIsWrong) {
  const MemoryView memory = view(left_memory_->data(), kBlock * 16);
  const auto refused = [&](const std::string& name, const Layout& layout, std::string_view what) {
    const std::string why = why_not(Status::kInvalidArgument, [&] {
      (void)left_->register_memory(memory, {.access = Access::kAll, .name = name, .layout = layout});
    });
    EXPECT_NE(why.find(what), std::string::npos) << why;
  };
  refused("a", paged(4, 5, kBlock), "ends beyond the region's 65536 bytes: 4 x 5 elements of 4096 bytes");
  refused("a", Layout::strided(kBlock, {2}, {UINT64_MAX - kBlock}), "ends beyond the region's");
  refused("a", paged(0, 5, kBlock), "has 0 elements in dimension 0");
  refused("a", paged(1, 1, 0), "has elements of 0 bytes");
  refused("a", Layout::strided(1, {UINT32_MAX, 2}, {0, 1}), "has more than 4294967295 elements");
  refused("a", Layout{}, "struct_size is 0");
  refused("", paged(1, 1, kBlock), "options.name is not");
  refused(std::string(256, 'x'), paged(1, 1, kBlock), "has 1 to 255 bytes, and options.name 256");
}

std::vector<Transport> some_transports() {
  std::vector<Transport> some;
  for (const Transport& transport : transports()) {
    const std::string name = transport.name;
    if (name == "memory" || name == "shm" || name == "shm_process_vm" || name == "tcp" || name == "cuda" ||
        name.starts_with("cuda_gpu"))
      some.push_back(transport);
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(Some, LayoutTest, ::testing::ValuesIn(some_transports()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace towline::conformance

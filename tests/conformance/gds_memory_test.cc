// GPU memory and the backend gds: cuFile is told of it once, and of its end only if it took it. The GPU, its driver and cuFile
// are fakes.
#include <dlfcn.h>

#include "storage_fixture.h"

namespace towline::conformance {
namespace {

class GdsMemoryTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 8 << 20;

  void SetUp() override {
    ASSERT_NE(::dlopen(TOWLINE_DMA_DRIVER, RTLD_NOW), nullptr)
        << ::dlerror();  // NOLINT(concurrency-mt-unsafe)
    library_ = ::dlopen(TOWLINE_FAKE_CUFILE, RTLD_NOW);
    ASSERT_NE(library_, nullptr) << ::dlerror();  // NOLINT(concurrency-mt-unsafe)
  }
  [[nodiscard]] size_t number(const char* name) const {
    return reinterpret_cast<size_t (*)()>(::dlsym(library_, name))();
  }
  void fail(const char* what, int times) const {
    reinterpret_cast<void (*)(const char*, int)>(::dlsym(library_, "fake_cufile_fail"))(what, times);
  }
  [[nodiscard]] Agent make_agent() const {
    return Agent("gds", {.listen = "none", .config = TOWLINE_GDS, .default_timeout = 30s});
  }
  Region add(const Agent& agent) {
    return agent.register_memory({.address = memory_.data(), .bytes = kBytes, .kind = Kind::kVram},
                                 {.access = Access::kAll});
  }
  void read_back(const Agent& agent) {
    std::vector<std::byte> contents(kBytes);
    stamp_bytes(contents.data(), kBytes, 5);
    place_.put("file", contents);
    const Region file = agent.register_storage(place_.uri("file"));
    const Transfer read = agent.transfer(agent.block_list(file.blocks(0, kBytes)),
                                         agent.block_list(Blocks::at(memory_.data(), kBytes, Kind::kVram)));
    Status status = read.post();
    if (status == Status::kInProgress) status = read.wait(30s);
    EXPECT_EQ(status, Status::kOk);
    EXPECT_TRUE(memory_ == contents);
  }

  FolderPlace place_{"gds"};
  std::vector<std::byte> memory_ = std::vector<std::byte>(kBytes);
  void* library_ = nullptr;
};

TEST_F(GdsMemoryTest, IsRegisteredWithCuFileUntilItsRegionEnds) {
  const Agent agent = make_agent();
  {
    const Region memory = add(agent);
    EXPECT_EQ(number("fake_cufile_buffers"), 1u);
    read_back(agent);
  }
  EXPECT_EQ(number("fake_cufile_buffers"), 0u);
  EXPECT_EQ(number("fake_cufile_wrong_deregistrations"), 0u);
}

TEST_F(GdsMemoryTest, ThatCuFileDoesNotTakeMovesButIsNotDeregistered) {
  const Agent agent = make_agent();
  fail("buffer", 1);
  {
    const Region memory = add(agent);
    EXPECT_EQ(number("fake_cufile_buffers"), 0u);
    read_back(agent);
  }
  EXPECT_EQ(number("fake_cufile_wrong_deregistrations"), 0u);
}

// cuFile takes an address once. The second region's end is not the first one's.
TEST_F(GdsMemoryTest, ThatIsRegisteredTwiceStaysUntilTheFirstRegionEnds) {
  const Agent agent = make_agent();
  {
    const Region first = add(agent);
    { const Region second = add(agent); }
    EXPECT_EQ(number("fake_cufile_buffers"), 1u);
  }
  EXPECT_EQ(number("fake_cufile_buffers"), 0u);
  EXPECT_EQ(number("fake_cufile_wrong_deregistrations"), 0u);
}

TEST_F(GdsMemoryTest, OneLargeReadIsSharedByTheThreads) {
  const Agent agent = make_agent();
  const Region memory = add(agent);
  const auto meet = reinterpret_cast<void (*)(bool)>(::dlsym(library_, "fake_cufile_meet"));
  meet(true);
  read_back(agent);
  EXPECT_GT(number("fake_cufile_callers"), 1u);
  meet(false);
}

}  // namespace
}  // namespace towline::conformance

// Between GPU memory of this process and our own files, in one transfer through staging memory. The GPUs are
// made of host memory.
#include <algorithm>
#include <numeric>

#include "storage_fixture.h"
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

constexpr const char* kConfig = "plugins = [\"" TOWLINE_CUDA_FAKE
                                "\"]\n"
                                "[tuning.staging]\nchunk = \"64KiB\"\ndepth = 3\nbytes = \"400KiB\"\n";

class StorageGpuTest : public ::testing::TestWithParam<bool> {  // direct files?
 protected:
  static constexpr uint64_t kBytes = 1 << 20;
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kLaneBytes = 3 * (64 << 10);
  static constexpr uint32_t kPages = kBytes / kPage;

  [[nodiscard]] Region open(const std::string& name, StorageOptions options = {}) {
    options.direct = GetParam();
    return agent_.register_storage(folder_.uri(name), options);
  }
  void make_file(const std::string& name, uint64_t bytes, uint64_t seed) {
    std::vector<std::byte> contents(bytes);
    stamp_bytes(contents.data(), bytes, seed);
    folder_.put(name, contents);
  }
  [[nodiscard]] Blocks in_gpu(uint64_t offset, uint64_t bytes) const {
    return Blocks::at(memory_.data() + offset, bytes, Kind::kVram);
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(60s) : posted;
  }
  static std::string next_notice(const Agent& agent) {
    Notice notice;
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (agent.receive(notice) != Status::kOk && std::chrono::steady_clock::now() < until)
      (void)agent.wait(100ms);
    return std::string(notice.text());
  }

  FolderPlace folder_;
  Buffer memory_{kBytes, true};
  Agent agent_{"stager",
               {.listen = "none", .backends = "cuda,posix", .config = kConfig, .default_timeout = 60s}};
  Region region_ = agent_.register_memory({.address = memory_.data(), .bytes = kBytes, .kind = Kind::kVram},
                                          {.access = Access::kAll});
};

INSTANTIATE_TEST_SUITE_P(All, StorageGpuTest, ::testing::Bool(),
                         [](const auto& direct) { return direct.param ? "direct" : "buffered"; });

TEST_P(StorageGpuTest, WholeMemoryGoesToAFileAndComesBack) {
  const Region file = open("whole", {.create = true, .bytes = kBytes});
  const BlockList stored = agent_.block_list(file.blocks(0, kBytes));
  const BlockList ours = agent_.block_list(in_gpu(0, kBytes));
  stamp_bytes(memory_.data(), kBytes, 1);
  const Transfer save = agent_.transfer(ours, stored, {.notice = "saved"});
  EXPECT_NE(save.route().find("staged through 0.1875 MiB: cuda then posix"), std::string::npos)
      << save.route();
  ASSERT_EQ(run(save), Status::kOk);
  EXPECT_EQ(save.result().bytes, kBytes);
  EXPECT_EQ(next_notice(agent_), "saved");
  const std::vector<std::byte> contents = folder_.get("whole");
  ASSERT_EQ(contents.size(), kBytes);
  EXPECT_EQ(first_difference(contents.data(), kBytes, 1), kBytes);
  std::memset(memory_.data(), 0, kBytes);
  const Transfer load = agent_.transfer(stored, ours);
  EXPECT_NE(load.route().find("posix then cuda"), std::string::npos) << load.route();
  ASSERT_EQ(run(load), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 1), kBytes);
}

TEST_P(StorageGpuTest, TheFileMayBeTheLocalSide) {
  make_file("local", kBytes, 2);
  const Region file = open("local", {.access = Access::kAll});
  const BlockList stored = agent_.block_list(file.blocks(0, kBytes));
  const BlockList ours = agent_.block_list(in_gpu(0, kBytes));
  ASSERT_EQ(run(agent_.transfer(stored, ours)), Status::kOk);
  EXPECT_EQ(first_difference(memory_.data(), kBytes, 2), kBytes);
  stamp_bytes(memory_.data(), kBytes, 3);
  ASSERT_EQ(run(agent_.transfer(ours, stored)), Status::kOk);
  const std::vector<std::byte> contents = folder_.get("local");
  EXPECT_EQ(first_difference(contents.data(), kBytes, 3), kBytes);
}

TEST_P(StorageGpuTest, PickedPagesGoWhereTheyBelong) {
  make_file("pages", kBytes, 4);
  const Region file = open("pages", {.access = Access::kAll});
  const BlockList stored = agent_.block_list(file.blocks(0, kPage).repeat(kPages, kPage));
  const BlockList ours = agent_.block_list(in_gpu(0, kPage).repeat(kPages, kPage));
  std::vector<uint32_t> from(kPages);
  std::iota(from.begin(), from.end(), 0u);
  std::shuffle(from.begin(), from.end(), std::mt19937(12));
  from.resize(kPages - 37);
  const std::vector<uint32_t> to(from.rbegin(), from.rend());
  ASSERT_EQ(run(agent_.transfer(stored[from], ours[to])), Status::kOk);
  for (size_t i = 0; i < from.size(); ++i)
    ASSERT_EQ(first_difference(memory_.data() + to[i] * kPage, kPage, 4, from[i] * kPage), kPage) << i;
  stamp_bytes(memory_.data(), kBytes, 5);
  ASSERT_EQ(run(agent_.transfer(ours[from], stored[to])), Status::kOk);
  const std::vector<std::byte> contents = folder_.get("pages");
  for (size_t i = 0; i < from.size(); ++i)
    ASSERT_EQ(first_difference(contents.data() + to[i] * kPage, kPage, 5, from[i] * kPage), kPage) << i;
}

TEST_P(StorageGpuTest, AFileThatEndsTooSoonNamesTheBlocksThatAreMissing) {
  constexpr uint64_t kThere = kBytes / 2;
  make_file("short", kThere, 6);
  const Region file = open("short", {.bytes = kBytes});
  const Transfer load = agent_.transfer(agent_.block_list(file.blocks(0, kPage).repeat(kPages, kPage)),
                                        agent_.block_list(in_gpu(0, kPage).repeat(kPages, kPage)));
  EXPECT_NE(run(load), Status::kOk);
  ASSERT_EQ(load.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  const Result result = load.result();
  ASSERT_GE(result.failed_ranges, 1u);
  EXPECT_LE(result.failed[0].first, kThere / kPage);
  const uint64_t there = result.failed[0].first * kPage;
  EXPECT_GE(there + kLaneBytes, kThere) << "what was on its way may have been given up";
  EXPECT_EQ(first_difference(memory_.data(), there, 6), there);
}

TEST_P(StorageGpuTest, RightsAreKeptAndStreamsAreRefused) {
  make_file("read", kBytes, 7);
  const Region file = open("read");
  const BlockList stored = agent_.block_list(file.blocks(0, kBytes));
  const BlockList ours = agent_.block_list(in_gpu(0, kBytes));
  EXPECT_THROW((void)agent_.transfer(ours, stored), Error);
  const Transfer load = agent_.transfer(stored, ours);
  EXPECT_EQ(load.post_on(nullptr), Status::kUnsupported);
  EXPECT_NE(std::string(last_error()).find("staged"), std::string::npos) << last_error();
  ASSERT_EQ(run(load), Status::kOk);
}

// In parts of several chunks, with all of GPU memory on either side of the transfer.
TEST(GpuMemoryAndObjects, GoToOneAnother) {
  if (support::S3Server::program().empty()) GTEST_SKIP() << support::S3Server::kMissing;
  constexpr uint64_t kBytes = (12 << 20) + 5;
  BucketPlace bucket;
  const Agent agent("stager", {.listen = "none",
                               .backends = "cuda,object",
                               .config = "plugins = [\"object\", \"" TOWLINE_CUDA_FAKE "\"]\n" +
                                         bucket.config().substr(bucket.config().find('\n') + 1),
                               .default_timeout = 60s});
  const Buffer memory{kBytes, true};
  const Region region = agent.register_memory(
      {.address = memory.data(), .bytes = kBytes, .kind = Kind::kVram}, {.access = Access::kAll});
  const BlockList ours = agent.block_list(Blocks::at(memory.data(), kBytes, Kind::kVram));
  const auto run = [](const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(60s) : posted;
  };
  for (const bool far : {true, false}) {
    SCOPED_TRACE(far);
    const std::string name = far ? "far" : "near";
    const Region object = agent.register_storage(bucket.uri(name), {.create = true, .bytes = kBytes});
    const BlockList stored = agent.block_list(object.blocks(0, kBytes));
    const Transfer save = far ? agent.transfer(ours, stored) : agent.transfer(ours, stored);
    EXPECT_NE(save.route().find("cuda then object"), std::string::npos) << save.route();
    const uint64_t seed = far ? 41 : 42;
    stamp_bytes(memory.data(), kBytes, seed);
    ASSERT_EQ(run(save), Status::kOk) << save.route();
    EXPECT_EQ(save.result().bytes, kBytes);
    const std::vector<std::byte> saved = bucket.get(name);
    ASSERT_EQ(saved.size(), kBytes);
    EXPECT_EQ(first_difference(saved.data(), kBytes, seed), kBytes);
    std::memset(memory.data(), 0, kBytes);
    ASSERT_EQ(run(agent.transfer(stored, ours)), Status::kOk);
    EXPECT_EQ(first_difference(memory.data(), kBytes, seed), kBytes);
  }
}

// Over tcp, which brings a peer's GPU memory to staging memory here.
TEST(GpuMemoryAndObjects, OfAPeerGoToOneAnother) {
  if (support::S3Server::program().empty()) GTEST_SKIP() << support::S3Server::kMissing;
  constexpr uint64_t kBytes = (12 << 20) + 5;
  BucketPlace bucket;
  const Agent agent("stager", {.listen = "127.0.0.1:0",
                               .backends = "tcp,object",
                               .config = "plugins = [\"object\"]\n" +
                                         bucket.config().substr(bucket.config().find('\n') + 1),
                               .default_timeout = 60s});
  const Agent owner("owner", {.listen = "127.0.0.1:0",
                              .backends = "tcp,cuda",
                              .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n",
                              .default_timeout = 60s});
  const Buffer memory{kBytes, true};
  const Region region = owner.register_memory(
      {.address = memory.data(), .bytes = kBytes, .kind = Kind::kVram}, {.access = Access::kAll});
  const Peer peer = agent.add_peer(owner.metadata());
  const BlockList theirs = peer.block_list(Blocks::at(memory.data(), kBytes, Kind::kVram));
  const Region object = agent.register_storage(bucket.uri("gpu"), {.create = true, .bytes = kBytes});
  const BlockList stored = agent.block_list(object.blocks(0, kBytes));
  const auto run = [](const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(60s) : posted;
  };
  stamp_bytes(memory.data(), kBytes, 43);
  const Transfer save = agent.transfer(theirs, stored);
  EXPECT_NE(save.route().find("tcp then object"), std::string::npos) << save.route();
  ASSERT_EQ(run(save), Status::kOk) << save.route();
  const std::vector<std::byte> saved = bucket.get("gpu");
  ASSERT_EQ(saved.size(), kBytes);
  EXPECT_EQ(first_difference(saved.data(), kBytes, 43), kBytes);
  std::memset(memory.data(), 0, kBytes);
  ASSERT_EQ(run(agent.transfer(stored, theirs)), Status::kOk);
  EXPECT_EQ(first_difference(memory.data(), kBytes, 43), kBytes);
}

}  // namespace
}  // namespace towline::conformance

// Backends over vendors' libraries on bad days: the library refuses, comes short, fails, or is not there.
#include <dlfcn.h>
#include <sys/mount.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "storage_fixture.h"
#include "support/directed.h"

namespace towline::conformance {
namespace {

// The library of a fake, in this process: the same one that the backend loads.
class Fake {
 public:
  Fake(const char* file, const char* prefix)
      : prefix_(prefix), handle_(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(handle_, nullptr) << ::dlerror();  // NOLINT(concurrency-mt-unsafe)
  }
  ~Fake() {
    limit(SIZE_MAX);
    hold(false);
  }
  Fake(const Fake&) = delete;
  Fake& operator=(const Fake&) = delete;

  void fail(const char* what, int times) const { get<void(const char*, int)>("_fail")(what, times); }
  void hold(bool held) const { get<void(bool)>("_hold")(held); }
  void limit(size_t bytes) const { get<void(size_t)>("_limit")(bytes); }
  template <class Function>
  [[nodiscard]] Function* get(const std::string& name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_, (prefix_ + name).c_str()));
  }

 private:
  const std::string prefix_;
  void* const handle_;
};

struct Vendor {
  const char* name;
  const char* config;
  const char* library;
  const char* fake;
  std::vector<const char*> refusals;  // calls without which a file can't be opened
  std::vector<const char*> breaks;    // calls whose failure ends a transfer
  const char* function;               // the first that is looked for in the library
  Status full = Status::kNoSpace;     // the outcome on a full disk, as far as the library tells
};

const Vendor kVendors[] = {
    {"gds",
     TOWLINE_GDS,
     TOWLINE_FAKE_CUFILE,
     "fake_cufile",
     {"handle"},
     {"read", "batch_status"},
     "cuFileDriverOpen"},
    {"hf3fs",
     TOWLINE_HF3FS,
     TOWLINE_FAKE_USRBIO,
     "fake_usrbio",
     {"iov", "ior", "register"},
     {"prepare", "submit", "wait", "io"},
     "hf3fs_iovcreate"},
    {"nixl",
     TOWLINE_NIXL,
     TOWLINE_FAKE_NIXL,
     "fake_nixl",
     {"register", "local"},
     {"prepare", "post", "check", "throw"},
     "nixl_plugin_init",
     Status::kIo},
};

// A file system of 1 MiB.
class SmallDisk {
 public:
  SmallDisk() : mounted_(::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=1m") == 0) {}
  ~SmallDisk() {
    if (mounted_) (void)::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  [[nodiscard]] bool mounted() const noexcept { return mounted_; }
  [[nodiscard]] std::string path() const { return folder_.path(); }

 private:
  const support::TemporaryFolder folder_;
  const bool mounted_;
};

void PrintTo(const Vendor& vendor, std::ostream* out) { *out << vendor.name; }

class VendorTest : public ::testing::TestWithParam<Vendor> {
 protected:
  static constexpr uint64_t kBytes = 8 << 20;
  static constexpr uint64_t kBlock = 64 << 10;

  void SetUp() override {
    contents_.resize(kBytes);
    stamp_bytes(contents_.data(), kBytes, 7);
    place_.put("file", contents_);
    memory_.resize(kBytes);
  }
  [[nodiscard]] std::unique_ptr<Agent> make_agent(const std::string& more = {}) const {
    AgentOptions options;
    options.listen = "none";
    options.config = std::string(GetParam().config) + more;
    options.default_timeout = 30s;
    return std::make_unique<Agent>("vendor", options);
  }
  // Every second block, backwards, so that pieces do not merge.
  [[nodiscard]] Transfer transfer(const Agent& agent, Op op, const Region& file,
                                  const TransferOptions& options = {}) const {
    std::vector<uint64_t> picks;
    for (uint64_t block = kBytes / kBlock; block-- > 0;) picks.push_back(block);
    const BlockList mine = agent.block_list(
        Blocks::at(memory_.data(), kBlock).repeat(kBytes / kBlock, static_cast<int64_t>(kBlock)));
    const BlockList theirs =
        agent.block_list(file.blocks(0, kBlock).repeat(kBytes / kBlock, static_cast<int64_t>(kBlock)));
    return directed(agent, op, mine[picks], theirs[picks], options);
  }
  // Until its memory is its own again: a failure is told before all parts have ended.
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    const Status outcome = posted == Status::kInProgress ? transfer.wait(30s) : posted;
    EXPECT_EQ(transfer.wait_fenced(Fence::kBoth, 30s), Status::kOk);
    return outcome;
  }

  const Fake fake_{GetParam().library, GetParam().fake};
  FolderPlace place_{GetParam().name};
  std::vector<std::byte> contents_;
  mutable std::vector<std::byte> memory_;
};

TEST_P(VendorTest, PiecesThatComeShortGoOn) {
  const auto agent = make_agent();
  const Region memory =
      agent->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll});
  const Region file = agent->register_storage(place_.uri("file"));
  fake_.limit(10'000);
  const Transfer read = transfer(*agent, Op::read, file);
  ASSERT_EQ(run(read), Status::kOk);
  EXPECT_TRUE(memory_ == contents_);
  EXPECT_EQ(read.result().bytes, kBytes);
  const Region copy = agent->register_storage(place_.uri("copy"), {.create = true, .bytes = kBytes});
  ASSERT_EQ(run(transfer(*agent, Op::write, copy)), Status::kOk);
  EXPECT_TRUE(place_.get("copy") == contents_);
}

TEST_P(VendorTest, AFailureIsTheTransfersAndTheNextOneWorks) {
  const auto agent = make_agent("batch = 8\n");
  const Region memory =
      agent->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll});
  const Region file = agent->register_storage(place_.uri("file"));
  const Transfer read = transfer(*agent, Op::read, file);
  for (const char* what : GetParam().breaks) {
    fake_.fail(what, 1);
    EXPECT_TRUE(is_error(run(read))) << what;
    EXPECT_LT(read.result().bytes, kBytes) << what;
    fake_.fail(what, 0);
    std::fill(memory_.begin(), memory_.end(), std::byte{});
    EXPECT_EQ(run(read), Status::kOk) << what;
    EXPECT_TRUE(memory_ == contents_) << what;
  }
}

TEST_P(VendorTest, ALibraryThatStallsEndsTransfersByTheirDeadlineAndServesAgain) {
  const auto agent = make_agent();
  const Region memory =
      agent->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll});
  const Region file = agent->register_storage(place_.uri("file"));
  const Transfer read = transfer(*agent, Op::read, file, {.timeout = 1s});
  fake_.hold(true);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(read.post(), Status::kInProgress);
  EXPECT_EQ(read.wait(30s), Status::kTimedOut);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_NE(read.wait_fenced(Fence::kBoth, 10ms), Status::kOk) << "the library still has the memory";
  fake_.hold(false);
  EXPECT_EQ(read.wait_fenced(Fence::kBoth, 30s), Status::kOk);
  std::fill(memory_.begin(), memory_.end(), std::byte{});
  EXPECT_EQ(run(transfer(*agent, Op::read, file)), Status::kOk);
  EXPECT_TRUE(memory_ == contents_);
}

TEST_P(VendorTest, AFullDiskIsAnErrorOfThatTransferOnly) {
  const SmallDisk small;
  if (!small.mounted()) GTEST_SKIP() << "needs the right to mount a tmpfs: " << std::strerror(errno);
  for (const char* more : {"", "batch = 1\n"}) {
    SCOPED_TRACE(more);
    const auto agent = make_agent(more);
    const Region memory =
        agent->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll});
    const Region full = agent->register_storage(std::string(GetParam().name) + ":" + small.path() + "/file",
                                                {.create = true, .truncate = true, .bytes = kBytes});
    const Region fine = agent->register_storage(place_.uri("fine"), {.create = true, .bytes = kBytes});
    memory_ = contents_;
    const Transfer write = transfer(*agent, Op::write, full);
    const Transfer other = transfer(*agent, Op::write, fine);
    const Status posted = other.post();
    EXPECT_EQ(run(write), GetParam().full);
    EXPECT_EQ(posted == Status::kInProgress ? other.wait(30s) : posted, Status::kOk);
    EXPECT_TRUE(place_.get("fine") == contents_);
    ASSERT_FALSE(write.result().failures().empty());
    EXPECT_LT(write.result().bytes, kBytes);
  }
}

TEST_P(VendorTest, ARefusalNamesItselfAndTheNextTryWorks) {
  for (const char* what : GetParam().refusals) {
    const auto agent = make_agent();
    fake_.fail(what, 1);
    try {
      (void)agent->register_storage(place_.uri("file"));
      ADD_FAILURE() << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(GetParam().name), std::string::npos) << error.what();
    }
    fake_.fail(what, 0);
    EXPECT_NO_THROW((void)agent->register_storage(place_.uri("file"))) << what;
  }
}

TEST_P(VendorTest, ALibraryThatIsNotThereIsNamed) {
  AgentOptions options;
  options.listen = "none";
  options.config = std::string("plugins = \"") + GetParam().name + "\"\n[" + GetParam().name +
                   "]\nlibrary = \"/nowhere/lib.so\"\n";
  try {
    const Agent agent("vendor", options);
    (void)agent.register_storage(place_.uri("file"));
    ADD_FAILURE() << "it was opened";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/lib.so"), std::string::npos) << error.what();
  }
}

// As one of another version would: a function that the backend needs is not there.
TEST_P(VendorTest, ALibraryThatLacksAFunctionNamesIt) {
  const auto why = [&](const char* file) -> std::string {
    AgentOptions options;
    options.listen = "none";
    options.config = std::string("plugins = \"") + GetParam().name + "\"\n[" + GetParam().name +
                     "]\nlibrary = \"" + file + "\"\n";
    try {
      const Agent agent("vendor", options);
      (void)agent.register_storage(place_.uri("file"));
      return "it was opened";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::string other =
      GetParam().library == std::string(TOWLINE_FAKE_CUFILE) ? TOWLINE_FAKE_USRBIO : TOWLINE_FAKE_CUFILE;
  const std::string text = why(other.c_str());
  EXPECT_NE(text.find(GetParam().function), std::string::npos) << text;
  EXPECT_NE(text.find(other), std::string::npos) << text;
}

TEST_P(VendorTest, SettingsOutOfRangeOrUnknownAreNamed) {
  const std::string section = std::string("tuning.") + GetParam().name + ".";
  for (const auto& [line, named] : {std::pair{"batch = 0\n", "batch"},
                                    {"batch = \"many\"\n", "batch"},
                                    {"piece = \"1B\"\n", "piece"},
                                    {"nobody_knows = 1\n", "nobody_knows"}}) {
    try {
      const auto agent = make_agent(line);
      (void)agent->register_storage(place_.uri("file"));
      ADD_FAILURE() << line << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kInvalidArgument) << line;
      EXPECT_NE(std::string(error.what()).find(section + named), std::string::npos) << error.what();
    }
  }
}

// Between two posts, and while blocks of it are read: what is gone is short, and the rest arrives.
TEST_P(VendorTest, AFileCutShortIsAnErrorOfThatTransferOnly) {
  const auto agent = make_agent("batch = 8\n");
  const Region memory =
      agent->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll});
  const Region file = agent->register_storage(place_.uri("file"));
  const Region other = agent->register_storage(place_.uri("other"), {.create = true, .bytes = kBytes});
  const Transfer read = transfer(*agent, Op::read, file);
  ASSERT_EQ(run(read), Status::kOk);
  const std::string path = place_.uri("file").substr(std::strlen(GetParam().name) + 1);
  ASSERT_EQ(::truncate(path.c_str(), 3 * kBlock + 100), 0);
  const Status cut = run(read);
  EXPECT_TRUE(is_error(cut)) << static_cast<int>(cut);
  ASSERT_FALSE(read.result().failures().empty());
  EXPECT_LT(read.result().bytes, kBytes);
  memory_ = contents_;
  EXPECT_EQ(run(transfer(*agent, Op::write, other)), Status::kOk);
  EXPECT_TRUE(place_.get("other") == contents_);
  place_.put("file", contents_);
  std::fill(memory_.begin(), memory_.end(), std::byte{});
  EXPECT_EQ(run(read), Status::kOk);
  EXPECT_TRUE(memory_ == contents_);
}

TEST_P(VendorTest, ManyThreadsMoveAtOnce) {
  const auto agent = make_agent("piece = \"32KiB\"\nbatch = 4\n");
  const Region memory =
      agent->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll});
  const Region file = agent->register_storage(place_.uri("file"));
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const uint64_t part = kBytes / kThreads;
      const uint64_t begin = part * static_cast<uint64_t>(i);
      const Transfer mine = agent->transfer(agent->block_list(file.blocks(begin, part)),
                                            agent->block_list(Blocks::at(memory_.data() + begin, part)));
      for (int round = 0; round < 10; ++round)
        if (run(mine) != Status::kOk) ++failed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(memory_ == contents_);
}

INSTANTIATE_TEST_SUITE_P(Vendors, VendorTest, ::testing::ValuesIn(kVendors),
                         [](const auto& vendor) { return std::string(vendor.param.name); });

// If cuFile makes no batches, its plain calls move the bytes.
TEST(GdsTest, BatchesThatAreRefusedAreDoneByCalls) {
  const Fake fake(TOWLINE_FAKE_CUFILE, "fake_cufile");
  FolderPlace place("gds");
  std::vector<std::byte> contents(1 << 20);
  stamp_bytes(contents.data(), contents.size(), 3);
  place.put("file", contents);
  for (const char* what : {"", "batch_set_up", "batch_submit"}) {
    if (*what != 0) fake.fail(what, 1'000);
    const unsigned before = fake.get<unsigned()>("_batches")();
    AgentOptions options;
    options.listen = "none";
    options.config = TOWLINE_GDS "piece = \"64KiB\"\n";
    const Agent agent("gds", options);
    std::vector<std::byte> memory(contents.size());
    const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
    const Region file = agent.register_storage(place.uri("file"));
    const Transfer read = agent.transfer(agent.block_list(file.blocks(0, memory.size())),
                                         agent.block_list(Blocks::at(memory.data(), memory.size())));
    Status status = read.post();
    if (status == Status::kInProgress) status = read.wait(30s);
    EXPECT_EQ(status, Status::kOk) << what;
    EXPECT_TRUE(memory == contents) << what;
    EXPECT_EQ(fake.get<unsigned()>("_batches")() != before, *what == 0) << what;
    if (*what != 0) fake.fail(what, 0);
  }
  EXPECT_EQ(fake.get<size_t()>("_open_files")(), 0u);
}

}  // namespace
}  // namespace towline::conformance

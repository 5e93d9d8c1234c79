// Files and devices that go wrong while they are used: a device that answers EIO or nothing at all, files
// that are cut while they are read, descriptors that were closed, block devices that lost what is behind
// them.
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "storage_bad_disk.h"
#include "storage_support.h"
#include "support/directed.h"

namespace towline::faults {
namespace {

constexpr uint64_t kBlock = 64 << 10;
constexpr uint64_t kBlocks = 32;
constexpr uint64_t kBytes = kBlock * kBlocks;

struct Way {
  const char* engine;
  bool direct;
};
constexpr Way kWays[] = {{"auto", false},    {"uring", false}, {"aio", false},
                         {"threads", false}, {"pread", false}, {"auto", true},
                         {"uring", true},    {"aio", true},    {"threads", true}};

// An agent of one way, memory in blocks that hold their number, and a healthy file beside.
class Station {
 public:
  explicit Station(const Way& way, const std::string& folder)
      : agent_("station", quiet("[tuning.posix]\nengine = \"" + std::string(way.engine) + "\"\n")),
        memory_(kBytes),
        direct_(way.direct) {
    stamp();
    region_.emplace(agent_.register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll}));
    mine_.emplace(agent_.block_list(blocks_of(memory_.data(), memory_.size(), kBlock)));
    healthy_.emplace(agent_.register_storage("file:" + folder + "/healthy",
                                             {.create = true, .truncate = true, .bytes = kBytes}));
  }

  [[nodiscard]] Region open(const std::string& path,
                            StorageOptions options = {.access = Access::kAll}) const {
    options.direct = direct_;
    return agent_.register_storage("file:" + path, options);
  }
  [[nodiscard]] Transfer transfer(Op op, const Region& file, TransferOptions options = {}) const {
    const auto blocks = agent_.block_list(file.blocks(0, kBlock).repeat(kBlocks, kBlock));
    return directed(agent_, op, *mine_, blocks, options);
  }
  [[nodiscard]] Transfer one_block(Op op, const Region& file, uint64_t block) const {
    const uint64_t picks[] = {block};
    const auto blocks = agent_.block_list(file.blocks(0, kBlock).repeat(kBlocks, kBlock));
    return directed(agent_, op, (*mine_)[picks], blocks[picks]);
  }
  // Another file of the same agent.
  void expect_others_go_on() const {
    EXPECT_EQ(run(transfer(Op::write, *healthy_)), Status::kOk);
    EXPECT_EQ(run(transfer(Op::read, *healthy_)), Status::kOk);
  }
  void stamp() {
    for (uint64_t i = 0; i < kBytes; ++i) memory_[i] = std::byte(i / kBlock + 1);
  }
  void clear() { std::fill(memory_.begin(), memory_.end(), std::byte{}); }
  [[nodiscard]] bool holds(uint64_t block) const {
    return memory_[block * kBlock] == std::byte(block + 1) &&
           memory_[(block + 1) * kBlock - 1] == std::byte(block + 1);
  }
  [[nodiscard]] const Agent& agent() const { return agent_; }

 private:
  Agent agent_;
  std::vector<std::byte> memory_;
  bool direct_;
  std::optional<Region> region_;
  std::optional<BlockList> mine_;
  std::optional<Region> healthy_;
};

void expect_failure(const Transfer& transfer, uint64_t block, int error) {
  const Result result = transfer.result();
  ASSERT_EQ(result.failures().size(), 1u);
  EXPECT_LE(result.failures()[0].first, block);
  EXPECT_GT(result.failures()[0].first + result.failures()[0].count, block);
  EXPECT_EQ(result.failures()[0].vendor_code, error);
}

void forget_cached(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0) << path;
  (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

// The ways that can be had here.
template <class Test>
void on_every_way(const std::string& folder, Test test) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(std::string(way.engine) + (way.direct ? ", direct" : ""));
    const auto station = std::make_unique<Station>(way, folder);
    try {
      test(*station);
    } catch (const Error& error) {
      if (error.code() != Status::kUnsupported) throw;
      std::printf("%s: left out: %s\n", way.engine, error.what());
    }
  }
}

// ---- a device that fails

TEST(StorageDevices, AnErrorOfTheDeviceNamesItsBlocksAndNoOthers) {
  const Folder folder, mount;
  BadDisk disk(mount.path(), kBytes);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  on_every_way(folder.path(), [&](Station& station) {
    const Region file = station.open(disk.file());
    EXPECT_EQ(run(station.transfer(Op::write, file)), Status::kOk);
    constexpr uint64_t kBad = 21;
    disk.faults().read_begin = kBad * kBlock + 5000;
    disk.faults().read_end = kBad * kBlock + 5001;
    disk.faults().write_begin = kBad * kBlock + 5000;
    disk.faults().write_end = kBad * kBlock + 5001;
    forget_cached(disk.file());
    station.clear();
    const Transfer read = station.transfer(Op::read, file);
    EXPECT_EQ(run(read), Status::kIo);
    expect_failure(read, kBad, EIO);
    EXPECT_EQ(run(station.one_block(Op::read, file, kBad - 4)), Status::kOk);
    EXPECT_TRUE(station.holds(kBad - 4));
    station.stamp();
    const Transfer write = station.transfer(Op::write, file);
    EXPECT_EQ(run(write), Status::kIo);
    expect_failure(write, kBad, EIO);
    EXPECT_EQ(run(station.one_block(Op::write, file, kBad + 4)), Status::kOk);
    station.expect_others_go_on();
    disk.faults().read_end = 0;
    disk.faults().write_end = 0;
    EXPECT_EQ(run(write), Status::kOk) << "once the device is well, so is the transfer";
    EXPECT_EQ(run(read), Status::kOk);
  });
}

// Four threads write a staged chunk, a quarter each: two to a bad disk, where one hangs and the other waits
// for it, two elsewhere, which finish. Then the second one fails, and the first leaves the rest of its
// quarter: all of that must be named.
TEST(StorageDevices, WhatThreadsLeftWhenOneOfThemFailedIsNamed) {
  constexpr uint64_t kPieces = 32;  // in each file; in memory one behind the other, here every other one
  const Folder folder, mount;
  BadDisk disk(mount.path(), 2 * kPieces * kBlock);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const Agent owner("owner", {.listen = "127.0.0.1:0"});
  AgentOptions options = quiet(
      "[tuning.posix]\nengine = \"threads\"\nthreads = 4\n"
      "[tuning.staging]\nchunk = \"4MiB\"\ndepth = 2\nbytes = \"8MiB\"\n");
  options.listen = "127.0.0.1:0";
  const Agent agent("stager", options);
  std::vector<std::byte> memory(2 * kPieces * kBlock);
  for (uint64_t i = 0; i < memory.size(); ++i) memory[i] = std::byte(i / kBlock + 1);
  const Region region = owner.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const Peer peer = agent.add_peer(owner.metadata());
  const std::string paths[] = {disk.file(), folder / "healthy"};
  std::vector<Region> files;
  std::vector<Blocks> blocks;
  for (const std::string& path : paths) {
    files.push_back(agent.register_storage(
        "file:" + path,
        {.access = Access::kAll, .create = true, .direct = true, .bytes = 2 * kPieces * kBlock}));
    blocks.push_back(files.back().blocks(0, kBlock).repeat(kPieces, 2 * kBlock));
  }
  const auto is_there = [&](uint64_t piece) {
    const int fd = ::open(paths[piece / kPieces].c_str(), O_RDONLY | O_CLOEXEC);
    std::byte found{};
    const ssize_t got = ::pread(fd, &found, 1, static_cast<off_t>(2 * (piece % kPieces) * kBlock));
    ::close(fd);
    return got == 1 && found == std::byte(piece + 1);
  };
  const Transfer save = agent.transfer(peer.block_list(blocks_of(memory.data(), memory.size(), kBlock)),
                                       agent.block_list(blocks));
  BadDisk::Faults& faults = disk.faults();
  constexpr uint64_t kBad = 16;  // the first of the second quarter
  faults.write_begin = 2 * kBad * kBlock;
  faults.write_end = faults.write_begin + 1;
  faults.writes_hang_end = faults.write_end.load();  // whichever of the two comes first hangs
  faults.writes_hang = 1;
  ASSERT_EQ(save.post(), Status::kInProgress);
  const auto until = std::chrono::steady_clock::now() + 60s;
  const auto finished = [&] { return is_there(47) && is_there(63) && faults.hanging != 0; };
  while (!finished() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  ASSERT_TRUE(finished());
  faults.writes_hang = 0;
  EXPECT_EQ(save.wait(60s), Status::kIo);
  ASSERT_EQ(save.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  std::vector<bool> named(2 * kPieces);
  const Result result = save.result();
  for (const auto& range : result.failures()) {
    for (uint64_t piece = range.first; piece < range.first + range.count; ++piece) named.at(piece) = true;
  }
  EXPECT_TRUE(named[kBad]);
  uint64_t there = 0;
  for (uint64_t piece = 0; piece < named.size(); ++piece) {
    EXPECT_TRUE(named[piece] || is_there(piece)) << "piece " << piece << " is neither there nor named";
    there += named[piece] ? 0 : 1;
  }
  EXPECT_EQ(result.bytes, there * kBlock);
}

TEST(StorageDevices, WhatCanNotBeMadeDurableIsAnError) {
  const Folder folder, mount;
  BadDisk disk(mount.path(), kBytes);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  disk.faults().sync_fails = 1;
  on_every_way(folder.path(), [&](Station& station) {
    const Region file = station.open(disk.file(), {.access = Access::kAll, .sync = Sync::kData});
    const Transfer write = station.transfer(Op::write, file);
    EXPECT_EQ(run(write), Status::kIo);
    EXPECT_EQ(write.result().failures()[0].vendor_code, EIO);
    EXPECT_EQ(run(station.transfer(Op::read, file)), Status::kOk);
    station.expect_others_go_on();
  });
  const Agent agent("committer", quiet());
  const Region file = agent.register_storage("file:" + disk.file(), {.access = Access::kAll});
  try {
    file.commit();
    FAIL() << "a commit that failed was taken for done";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("EIO"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(disk.file()), std::string::npos) << error.what();
  }
}

TEST(StorageDevices, ADeviceThatSaysNothingHoldsUpOnlyItsOwn) {
  const Folder folder, mount;
  BadDisk disk(mount.path(), kBytes);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  for (const Way& way : {Way{"auto", false}, Way{"uring", true}, Way{"threads", false}}) {
    SCOPED_TRACE(way.engine);
    const Station station(way, folder.path());
    const Region file = station.open(disk.file());
    disk.faults().hanging = 0;
    disk.faults().reads_hang = 1;
    const Transfer read = station.transfer(Op::read, file, {.timeout = 1s});
    EXPECT_EQ(read.post(), Status::kInProgress);
    station.expect_others_go_on();
    EXPECT_EQ(read.wait(60s), Status::kTimedOut);
    EXPECT_GT(disk.faults().hanging, 0u);
    EXPECT_EQ(read.wait_fenced(Fence::kLocal, 1ms), Status::kNotYet) << "its bytes may still come";
    disk.faults().reads_hang = 0;
    EXPECT_EQ(read.wait_fenced(Fence::kBoth, 60s), Status::kOk);
    EXPECT_EQ(run(read), Status::kOk);
  }
}

// ---- files that change under a transfer

TEST(StorageDevices, AFileThatIsCutWhileItIsReadIsShortOrWhole) {
  const Folder folder;
  on_every_way(folder.path(), [&](Station& station) {
    const std::string path = folder / "cut";
    const Region file = station.open(path, {.create = true, .bytes = kBytes});
    ASSERT_EQ(run(station.transfer(Op::write, file)), Status::kOk);
    std::atomic<bool> enough{false};
    std::thread cutter([&] {
      while (!enough) {
        if (::truncate(path.c_str(), kBlock * 7 + 100) != 0 || ::truncate(path.c_str(), kBytes) != 0) break;
      }
    });
    const Transfer read = station.transfer(Op::read, file);
    for (int i = 0; i < 50; ++i) {
      const Status outcome = run(read);
      EXPECT_TRUE(outcome == Status::kOk || outcome == Status::kShort) << status_text(outcome);
      if (outcome == Status::kShort) {
        ASSERT_EQ(read.result().failures().size(), 1u);
        EXPECT_GE(read.result().failures()[0].first + read.result().failures()[0].count, 7u);
      }
    }
    enough = true;
    cutter.join();
    EXPECT_EQ(run(read), Status::kOk);
    EXPECT_TRUE(station.holds(0)) << "what was never cut off";
    station.expect_others_go_on();
  });
}

TEST(StorageDevices, ADescriptorClosedByItsOwnerStaysOpenForUs) {
  const Folder folder;
  make_file(folder / "file", kBytes, 3);
  const Station station({"auto", false}, folder.path());
  const int fd = ::open((folder / "file").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const Region file = station.agent().register_storage(fd, {.access = Access::kAll});
  const Transfer read = station.transfer(Op::read, file);
  ::close(fd);
  EXPECT_EQ(run(read), Status::kOk);
  EXPECT_EQ(::unlink((folder / "file").c_str()), 0);
  EXPECT_EQ(run(station.transfer(Op::write, file)), Status::kOk) << "a name is not the file";
}

// ---- block devices

// A loop device over a file.
class LoopDevice {
 public:
  LoopDevice(const std::string& path, uint32_t sector, bool read_only = false) {
    const int control = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) {
      refuse("/dev/loop-control");
      return;
    }
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    for (int attempt = 0; attempt < 20 && fd_ < 0; ++attempt) {
      const int number = ::ioctl(control, LOOP_CTL_GET_FREE);
      if (number < 0) {
        refuse("LOOP_CTL_GET_FREE");
        break;
      }
      name_ = "/dev/loop" + std::to_string(number);
      fd_ = ::open(name_.c_str(), O_RDWR | O_CLOEXEC);
      if (fd_ < 0 && errno == ENOENT) {
        (void)::mknod(name_.c_str(), S_IFBLK | 0600, ::makedev(7, static_cast<unsigned>(number)));
        fd_ = ::open(name_.c_str(), O_RDWR | O_CLOEXEC);
      }
      if (fd_ < 0) {
        refuse(name_.c_str());
        break;
      }
      loop_config config = {};
      config.fd = static_cast<uint32_t>(file);
      config.block_size = sector;
      config.info.lo_flags = read_only ? uint32_t{LO_FLAGS_READ_ONLY} : 0;
      if (::ioctl(fd_, LOOP_CONFIGURE, &config) == 0) {
        why_not_.clear();
        break;
      }
      refuse("LOOP_CONFIGURE");  // somebody else was quicker, perhaps
      ::close(std::exchange(fd_, -1));
    }
    ::close(file);
    ::close(control);
  }
  ~LoopDevice() {
    if (fd_ < 0) return;
    (void)::ioctl(fd_, LOOP_CLR_FD);
    ::close(fd_);
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  void refuse(const char* what) { why_not_ = std::string(what) + ": " + std::strerror(errno); }

  std::string name_;
  std::string why_not_;
  int fd_ = -1;
};

TEST(StorageDevices, BlockDevicesAreReadAndWrittenAtAnyOffset) {
  for (const uint32_t sector : {512u, 4096u}) {
    SCOPED_TRACE(sector);
    const Folder folder;
    make_file(folder / "image", kBytes, 0);
    const LoopDevice device(folder / "image", sector);
    if (!device.why_not().empty()) GTEST_SKIP() << "no loop device: " << device.why_not();
    on_every_way(folder.path(), [&](Station& station) {
      const StorageInfo info = station.agent().query_storage("file:" + device.name());
      EXPECT_EQ(info.kind, static_cast<uint32_t>(TOWLINE_MEMORY_BLOCK));
      EXPECT_EQ(info.bytes, kBytes);
      const Region disk = station.open(device.name());
      EXPECT_EQ(disk.info().kind, static_cast<uint32_t>(TOWLINE_MEMORY_BLOCK));
      EXPECT_EQ(run(station.transfer(Op::write, disk)), Status::kOk);
      station.clear();
      EXPECT_EQ(run(station.transfer(Op::read, disk)), Status::kOk);
      for (uint64_t block = 0; block < kBlocks; ++block) EXPECT_TRUE(station.holds(block)) << block;
      // Neither offset, length nor address fits a sector.
      std::vector<std::byte> odd(10'001, std::byte{0xee});
      const Region region =
          station.agent().register_memory(dram(odd.data(), odd.size()), {.access = Access::kAll});
      const auto mine = station.agent().block_list(Blocks::at(odd.data() + 1, 10'000));
      const auto theirs = station.agent().block_list(disk.blocks(70'001, 10'000));
      EXPECT_EQ(run(station.agent().transfer(mine, theirs)), Status::kOk);
      std::fill(odd.begin(), odd.end(), std::byte{});
      EXPECT_EQ(run(station.agent().transfer(theirs, mine)), Status::kOk);
      EXPECT_EQ(odd[0], std::byte{});
      EXPECT_EQ(std::count(odd.begin() + 1, odd.end(), std::byte{0xee}), 10'000);
      EXPECT_EQ(run(station.one_block(Op::read, disk, 1)), Status::kOk);
      EXPECT_TRUE(station.holds(0)) << "the neighbours";
      EXPECT_THROW((void)station.agent().block_list(disk.blocks(kBytes - 10, 11)), Error);
    });
  }
}

TEST(StorageDevices, ABlockDeviceCanBeReadOnlyAndCanLoseItsEnd) {
  const Folder folder;
  make_file(folder / "image", kBytes, 5);
  {
    const LoopDevice device(folder / "image", 512, true);
    if (!device.why_not().empty()) GTEST_SKIP() << "no loop device: " << device.why_not();
    const Agent agent("frozen", quiet());
    EXPECT_EQ(refusal(agent, "file:" + device.name()).first, Status::kOk);
    const auto [code, text] = refusal(agent, "file:" + device.name(), {.access = Access::kAll});
    EXPECT_EQ(code, Status::kPermissionDenied) << text;
    EXPECT_NE(text.find(device.name()), std::string::npos) << text;
  }
  on_every_way(folder.path(), [&](Station& station) {
    ASSERT_EQ(::truncate((folder / "image").c_str(), kBytes), 0);
    const LoopDevice device(folder / "image", 512);
    const Region disk = station.open(device.name());
    const Transfer read = station.transfer(Op::read, disk);
    ASSERT_EQ(::truncate((folder / "image").c_str(), kBlock * 9), 0);
    EXPECT_EQ(run(read), Status::kIo);
    EXPECT_EQ(read.result().failures()[0].vendor_code, EIO);
    EXPECT_GE(read.result().failures()[0].first + read.result().failures()[0].count, 9u);
    EXPECT_EQ(run(station.one_block(Op::read, disk, 2)), Status::kOk);
    station.expect_others_go_on();
  });
}

// The kernel tells of pages that it could not write back to the first who asks, and then forgets them.
TEST(StorageDevices, BytesThatCouldNotBeWrittenBackFailEveryTransferThatWroteThem) {
  const Folder folder;
  Folder full;
  if (!full.mount_small("size=1m"))
    GTEST_SKIP() << "needs the right to mount a tmpfs: " << std::strerror(errno);
  make_file(full / "image", 0);
  ASSERT_EQ(::truncate((full / "image").c_str(), kBytes), 0);
  make_file(full / "filler", 1 << 20);  // a loop device takes a short write for a whole one
  const LoopDevice device(full / "image", 512);
  if (!device.why_not().empty()) GTEST_SKIP() << "no loop device: " << device.why_not();
  for (const char* engine : {"auto", "threads"}) {
    SCOPED_TRACE(engine);
    const Station station({engine, false}, folder.path());
    const Region disk = station.open(device.name(), {.access = Access::kAll, .sync = Sync::kData});
    std::vector<Transfer> writes;
    for (uint64_t block = 0; block < kBlocks; ++block)
      writes.push_back(station.one_block(Op::write, disk, block));
    for (const Transfer& write : writes) ASSERT_EQ(write.post(), Status::kInProgress);
    for (uint64_t block = 0; block < kBlocks; ++block)
      EXPECT_TRUE(is_error(writes[block].wait(30s))) << "block " << block << " is lost, and nobody was told";
    station.expect_others_go_on();
  }
}

TEST(StorageDevices, AReplacementWhoseBytesAreLostIsNotPutInPlaceByAskingAgain) {
  const Folder mount;
  Folder full;
  if (!full.mount_small("size=24m"))
    GTEST_SKIP() << "needs the right to mount a tmpfs: " << std::strerror(errno);
  const std::string image = full / "image";
  make_file(image, 0);
  ASSERT_EQ(::truncate(image.c_str(), 16 << 20), 0);
  if (std::system(("mkfs.ext4 -q -F -O ^has_journal " + image + " 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "no mkfs.ext4";
  const LoopDevice device(image, 512);
  if (!device.why_not().empty()) GTEST_SKIP() << "no loop device: " << device.why_not();
  if (::mount(device.name().c_str(), mount.path().c_str(), "ext4", 0, nullptr) != 0)
    GTEST_SKIP() << "no ext4: " << std::strerror(errno);
  {
    const Station station({"auto", false}, full.path());
    make_file(mount / "file", 100, 'o');
    ::sync();
    const int filler = ::open((full / "filler").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    const std::vector<char> page(4096, 'f');
    while (::write(filler, page.data(), page.size()) > 0) {
    }
    ::close(filler);
    const Region anew = station.open(mount / "file", {.replace = true, .bytes = kBytes});
    ASSERT_EQ(run(station.transfer(Op::write, anew)), Status::kOk);
    EXPECT_THROW(anew.commit(), Error);
    EXPECT_THROW(anew.commit(), Error) << "the kernel has forgotten, the bytes are gone";
    EXPECT_EQ(std::filesystem::file_size(mount / "file"), 100u);
  }
  (void)::umount2(mount.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace towline::faults

// Files through the POSIX backend.
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support.h"

namespace compat {
namespace {

class Files : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(side.agent->createBackend("POSIX", {}, side.backend), NIXL_SUCCESS)
        << towline::nixl::last_error();
    ASSERT_EQ(side.agent->registerMem(side.registered()), NIXL_SUCCESS);
    side.fill('a');
  }
  void TearDown() override { std::remove(path.c_str()); }

  [[nodiscard]] std::string contents() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // Blocks of 4096 bytes of the file in reverse order.
  [[nodiscard]] static nixl_xfer_dlist_t backwards(uint64_t device, size_t count) {
    nixl_xfer_dlist_t list(FILE_SEG);
    for (size_t i = 0; i < count; ++i) list.emplace((count - 1 - i) * 4096, size_t{4096}, device);
    return list;
  }
  static nixl_reg_dlist_t file(uint64_t device, size_t bytes, const std::string& info = "") {
    nixl_reg_dlist_t list(FILE_SEG);
    list.addDesc(nixlBlobDesc(0, bytes, device, info));
    return list;
  }

  std::string path = testing::TempDir() + "compat_nixl_storage_" + std::to_string(getpid());
  Side side{"storage", 64 * 1024, nixlAgentConfig{}, false};
};

TEST_F(Files, AreWrittenAndReadByDescriptor) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  const auto device = static_cast<uint64_t>(fd);
  ASSERT_EQ(side.agent->registerMem(file(device, 16 * 4096)), NIXL_SUCCESS) << towline::nixl::last_error();
  nixlXferReqH* write = request(side, NIXL_WRITE, side.blocks(16, 4096), backwards(device, 16), side.name);
  ASSERT_NE(write, nullptr);
  ASSERT_EQ(run(*side.agent, write), NIXL_SUCCESS);
  const std::string written = contents();
  ASSERT_EQ(written.size(), 16U * 4096);
  for (size_t i = 0; i < 16; ++i)
    EXPECT_EQ(written.compare((15 - i) * 4096, 4096, &side.memory[i * 4096], 4096), 0) << i;

  const std::vector<char> before = side.memory;
  std::fill(side.memory.begin(), side.memory.end(), '\0');
  nixlDlistH* here = nullptr;
  nixlDlistH* there = nullptr;
  ASSERT_EQ(side.agent->prepXferDlist(side.blocks(16, 4096), here), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->prepXferDlist(side.name, backwards(device, 16), there), NIXL_SUCCESS);
  nixlXferReqH* read = nullptr;
  ASSERT_EQ(side.agent->makeXferReq(NIXL_READ, here, {0, 5}, there, {0, 5}, read), NIXL_SUCCESS);
  ASSERT_EQ(run(*side.agent, read), NIXL_SUCCESS);
  EXPECT_EQ(std::memcmp(&side.memory[0], &before[0], 4096), 0);
  EXPECT_EQ(std::memcmp(&side.memory[5 * 4096], &before[5 * 4096], 4096), 0);
  EXPECT_EQ(side.memory[4096], '\0');
  EXPECT_EQ(side.agent->releaseXferReq(write), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->releaseXferReq(read), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(file(device, 16 * 4096)), NIXL_SUCCESS);
  close(fd);
}

TEST_F(Files, AreOpenedByPath) {
  ASSERT_EQ(side.agent->registerMem(file(7, 4 * 4096, "rw,create:" + path)), NIXL_SUCCESS)
      << towline::nixl::last_error();
  nixlXferReqH* write = request(side, NIXL_WRITE, side.blocks(4, 4096), backwards(7, 4), side.name);
  ASSERT_NE(write, nullptr);
  ASSERT_EQ(run(*side.agent, write), NIXL_SUCCESS);
  EXPECT_EQ(contents().size(), 4U * 4096);
  EXPECT_EQ(side.agent->releaseXferReq(write), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(file(7, 4 * 4096, "rw,create:" + path)), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->registerMem(file(8, 4096, "ro:" + path + ".not")), NIXL_ERR_BACKEND);
  EXPECT_EQ(side.agent->registerMem(file(1'000'000, 4096)), NIXL_ERR_BACKEND);  // no such descriptor
}

// A device's blocks, or a file's that stands for one: by descriptor and by path.
void move_blocks(Side& side, uint64_t device, const std::string& info) {
  nixl_reg_dlist_t registered(BLK_SEG);
  registered.addDesc(nixlBlobDesc(0, 8 * 4096, device, info));
  ASSERT_EQ(side.agent->registerMem(registered), NIXL_SUCCESS) << towline::nixl::last_error();
  nixl_xfer_dlist_t there(BLK_SEG);
  for (size_t i = 0; i < 8; ++i) there.emplace((7 - i) * 4096, size_t{4096}, device);
  side.fill('b');
  const std::vector<char> before = side.memory;
  nixlXferReqH* write = request(side, NIXL_WRITE, side.blocks(8, 4096), there, side.name);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(run(*side.agent, write), NIXL_SUCCESS) << towline::nixl::last_error();
  std::ranges::fill(side.memory, '\0');
  nixlDlistH* here = nullptr;
  nixlDlistH* blocks = nullptr;
  ASSERT_EQ(side.agent->prepXferDlist(side.blocks(8, 4096), here), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->prepXferDlist(side.name, there, blocks), NIXL_SUCCESS);
  nixlXferReqH* read = nullptr;
  ASSERT_EQ(side.agent->makeXferReq(NIXL_READ, here, {0, 3}, blocks, {0, 3}, read), NIXL_SUCCESS);
  EXPECT_EQ(run(*side.agent, read), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(std::memcmp(&side.memory[0], &before[0], 4096), 0);
  EXPECT_EQ(std::memcmp(&side.memory[size_t{3} * 4096], &before[size_t{3} * 4096], 4096), 0);
  nixl_xfer_dlist_t outside(BLK_SEG);
  outside.emplace(uintptr_t{8 * 4096}, size_t{4096}, device);
  nixlXferReqH* none = nullptr;
  EXPECT_EQ(side.agent->createXferReq(NIXL_READ, side.blocks(1, 4096), outside, side.name, none),
            NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(side.agent->releaseXferReq(write), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->releaseXferReq(read), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->releasedDlistH(here), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->releasedDlistH(blocks), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(registered), NIXL_SUCCESS) << towline::nixl::last_error();
}

TEST_F(Files, StandForBlockDevices) {
  nixl_mem_list_t kinds;
  nixl_b_params_t parameters;
  ASSERT_EQ(side.agent->getPluginParams("POSIX", kinds, parameters), NIXL_SUCCESS);
  EXPECT_EQ(std::ranges::count(kinds, BLK_SEG), 1);
  std::ofstream(path) << std::string(16 * 4096, 'x');
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  move_blocks(side, static_cast<uint64_t>(fd), "");
  close(fd);
  move_blocks(side, 7, "rw:" + path);
}

TEST_F(Files, BlockDevicesAreWrittenAndRead) {
  std::ofstream(path) << std::string(64 * 4096, 'x');
  const std::string file = path + ".loop";
  const std::string attach = "losetup --find --show " + path + " 2>/dev/null >" + file;
  const bool attached = std::system(attach.c_str()) == 0;  // NOLINT: in a test
  std::string device;
  std::getline(std::ifstream(file) >> std::ws, device);
  std::remove(file.c_str());
  if (!attached) GTEST_SKIP() << "needs the right to make loop devices";
  const int fd = open(device.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  if (fd >= 0) move_blocks(side, static_cast<uint64_t>(fd), "");
  move_blocks(side, 7, "rw:" + device);
  move_blocks(side, 8, "rw,direct:" + device);
  if (fd >= 0) close(fd);
  EXPECT_EQ(std::system(("losetup --detach " + device).c_str()), 0);  // NOLINT
}

TEST_F(Files, ThatAreTooShortAreAnError) {
  std::ofstream(path) << std::string(5000, 'x');
  ASSERT_EQ(side.agent->registerMem(file(9, 2 * 4096, "ro:" + path)), NIXL_SUCCESS)
      << towline::nixl::last_error();
  nixlXferReqH* read = request(side, NIXL_READ, side.blocks(2, 4096), backwards(9, 2), side.name);
  ASSERT_NE(read, nullptr);
  EXPECT_LT(run(*side.agent, read), 0);
}

TEST_F(Files, ThatAreCutShortLaterAreAnErrorAndServeAgain) {
  std::ofstream(path) << std::string(8 * 4096, 'x');
  ASSERT_EQ(side.agent->registerMem(file(9, 8 * 4096, "rw:" + path)), NIXL_SUCCESS)
      << towline::nixl::last_error();
  nixlXferReqH* read = request(side, NIXL_READ, side.blocks(8, 4096), backwards(9, 8), side.name);
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(run(*side.agent, read), NIXL_SUCCESS);
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  EXPECT_LT(run(*side.agent, read), 0);
  ASSERT_EQ(truncate(path.c_str(), 8 * 4096), 0);
  EXPECT_EQ(run(*side.agent, read), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(side.agent->releaseXferReq(read), NIXL_SUCCESS);
}

// A file system of 256 KiB.
class SmallDisk {
 public:
  SmallDisk() : path_(testing::TempDir() + "compat_nixl_disk_" + std::to_string(getpid())) {
    std::filesystem::create_directories(path_);
    mounted_ = ::mount("none", path_.c_str(), "tmpfs", 0, "size=256k") == 0;
  }
  ~SmallDisk() {
    if (mounted_) (void)::umount2(path_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(path_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const noexcept { return mounted_; }
  [[nodiscard]] std::string file() const { return path_ + "/file"; }

 private:
  const std::string path_;
  bool mounted_ = false;
};

// A request past the end of the disk, and then one within it.
void fill_disk(Side& side, const SmallDisk& disk) {
  std::ofstream(disk.file()).close();
  nixl_reg_dlist_t stored(FILE_SEG);
  stored.addDesc(nixlBlobDesc(0, 1 << 20, 7, "rw:" + disk.file()));
  ASSERT_EQ(side.agent->registerMem(stored), NIXL_SUCCESS) << towline::nixl::last_error();
  const auto write_at = [&](uintptr_t begin) {
    nixl_xfer_dlist_t blocks(FILE_SEG);
    for (size_t i = 0; i < 16; ++i) blocks.emplace(begin + i * 4096, size_t{4096}, uint64_t{7});
    nixlXferReqH* made = request(side, NIXL_WRITE, side.blocks(16, 4096), blocks, side.name);
    const nixl_status_t status = made == nullptr ? NIXL_ERR_UNKNOWN : run(*side.agent, made);
    if (made != nullptr) {
      EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);
    }
    return status;
  };
  nixl_status_t status = NIXL_SUCCESS;
  for (uintptr_t begin = 0; begin < 8 * 65536 && status == NIXL_SUCCESS; begin += 65536)
    status = write_at(begin);
  EXPECT_LT(status, 0);
  EXPECT_EQ(write_at(0), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(side.agent->deregisterMem(stored), NIXL_SUCCESS);
}

TEST_F(Files, OnAFullDiskAreAnErrorOfThatRequestOnly) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a tmpfs";
  fill_disk(side, disk);
}

// Unknown ones are kept, as NIXL's agent keeps them, and have no effect.
TEST_F(Files, TakeParametersThatNobodyKnows) {
  Side other("storage-unknown", 4096, nixlAgentConfig{}, false);
  ASSERT_EQ(other.agent->createBackend("POSIX", {{"nobody_knows", "x"}}, other.backend), NIXL_SUCCESS)
      << towline::nixl::last_error();
  nixl_mem_list_t kinds;
  nixl_b_params_t parameters;
  ASSERT_EQ(other.agent->getBackendParams(other.backend, kinds, parameters), NIXL_SUCCESS);
  EXPECT_EQ(parameters["nobody_knows"], "x");
}

TEST_F(Files, CarryNoNotificationsAndReachNobodyElse) {
  ASSERT_EQ(side.agent->registerMem(file(7, 4096, "rw,create:" + path)), NIXL_SUCCESS);
  const nixl_opt_args_t args = with_notif("x");
  nixlXferReqH* made = nullptr;
  EXPECT_EQ(
      side.agent->createXferReq(NIXL_WRITE, side.blocks(1, 4096), backwards(7, 1), side.name, made, &args),
      NIXL_ERR_BACKEND);
  nixl_xfer_dlist_t unknown(FILE_SEG);
  unknown.emplace(uintptr_t{0}, size_t{4096}, uint64_t{99});
  EXPECT_EQ(side.agent->createXferReq(NIXL_WRITE, side.blocks(1, 4096), unknown, side.name, made),
            NIXL_ERR_NOT_FOUND);
  nixl_notifs_t notifications;
  EXPECT_EQ(side.agent->getNotifs(notifications), NIXL_ERR_BACKEND);
  std::string blob;
  EXPECT_EQ(side.agent->getLocalMD(blob), NIXL_ERR_INVALID_PARAM);
  // Beside a transport both have their use.
  nixlBackendH* transport = nullptr;
  ASSERT_EQ(side.agent->createBackend("UCX", {}, transport), NIXL_SUCCESS);
  Side other("storage-other", 4096);
  side.load(other);
  nixlXferReqH* across = request(side, NIXL_WRITE, side.blocks(1, 4096), other.blocks(1, 4096), other.name);
  ASSERT_NE(across, nullptr);
  nixlBackendH* used = nullptr;
  EXPECT_EQ(side.agent->queryXferBackend(across, used), NIXL_SUCCESS);
  EXPECT_EQ(used, transport);
  EXPECT_EQ(run(*side.agent, across), NIXL_SUCCESS);
}

// ---- Files by vendors' libraries, here fakes of them.

struct Library {
  const char* backend;
  const char* variable;
  const char* file;
  nixl_b_params_t parameters;
};

class VendorFiles : public testing::TestWithParam<Library> {
 protected:
  // NOLINTBEGIN(concurrency-mt-unsafe): no agent lives
  void SetUp() override { ::setenv(GetParam().variable, GetParam().file, 1); }
  void TearDown() override {
    ::unsetenv(GetParam().variable);
    std::remove(path.c_str());
  }
  // NOLINTEND(concurrency-mt-unsafe)
  static nixl_reg_dlist_t file(uint64_t device, const std::string& info = "") {
    nixl_reg_dlist_t list(FILE_SEG);
    list.addDesc(nixlBlobDesc(0, 16 * 4096, device, info));
    return list;
  }
  static nixl_xfer_dlist_t blocks(uint64_t device) {
    nixl_xfer_dlist_t list(FILE_SEG);
    for (size_t i = 0; i < 16; ++i) list.emplace((15 - i) * 4096, size_t{4096}, device);
    return list;
  }
  std::string path = testing::TempDir() + "compat_nixl_vendor_" + std::to_string(getpid());
};

TEST_P(VendorFiles, AreWrittenAndReadByPathAndByDescriptor) {
  Side side("vendor", 16 * 4096, nixlAgentConfig{}, false);
  std::vector<nixl_backend_t> plugins;
  ASSERT_EQ(side.agent->getAvailPlugins(plugins), NIXL_SUCCESS);
  EXPECT_NE(std::find(plugins.begin(), plugins.end(), GetParam().backend), plugins.end());
  ASSERT_EQ(side.agent->createBackend(GetParam().backend, GetParam().parameters, side.backend), NIXL_SUCCESS)
      << towline::nixl::last_error();
  ASSERT_EQ(side.agent->registerMem(side.registered()), NIXL_SUCCESS) << towline::nixl::last_error();
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  const auto by_descriptor = static_cast<uint64_t>(fd);
  const uint64_t by_path = 1'000'000;
  ASSERT_EQ(side.agent->registerMem(file(by_descriptor)), NIXL_SUCCESS) << towline::nixl::last_error();
  ASSERT_EQ(side.agent->registerMem(file(by_path, "rw:" + path)), NIXL_SUCCESS)
      << towline::nixl::last_error();
  side.fill('a');
  const std::vector<char> before = side.memory;
  nixlXferReqH* write = request(side, NIXL_WRITE, side.blocks(16, 4096), blocks(by_descriptor), side.name);
  ASSERT_NE(write, nullptr);
  nixlBackendH* used = nullptr;
  EXPECT_EQ(side.agent->queryXferBackend(write, used), NIXL_SUCCESS);
  EXPECT_EQ(used, side.backend);
  ASSERT_EQ(run(*side.agent, write), NIXL_SUCCESS);
  std::fill(side.memory.begin(), side.memory.end(), '\0');
  nixlDlistH* here = nullptr;
  nixlDlistH* there = nullptr;
  ASSERT_EQ(side.agent->prepXferDlist(NIXL_INIT_AGENT, side.blocks(16, 4096), here), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->prepXferDlist(side.name, blocks(by_path), there), NIXL_SUCCESS);
  nixlXferReqH* read = nullptr;
  ASSERT_EQ(side.agent->makeXferReq(NIXL_READ, here, {0, 5}, there, {0, 5}, read), NIXL_SUCCESS);
  ASSERT_EQ(run(*side.agent, read), NIXL_SUCCESS);
  EXPECT_EQ(std::memcmp(&side.memory[0], &before[0], 4096), 0);
  EXPECT_EQ(std::memcmp(&side.memory[5 * 4096], &before[5 * 4096], 4096), 0);
  EXPECT_EQ(side.memory[4096], '\0');
  for (nixlXferReqH* made : {write, read}) EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);
  for (nixlDlistH* made : {here, there}) EXPECT_EQ(side.agent->releasedDlistH(made), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(file(by_descriptor)), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(file(by_path, "rw:" + path)), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(side.registered()), NIXL_SUCCESS);
  close(fd);
}

TEST_P(VendorFiles, ParametersThatAreWrongAreRefused) {
  const Side side("vendor-wrong", 4096, nixlAgentConfig{}, false);
  nixl_b_params_t parameters;
  nixl_mem_list_t memories;
  ASSERT_EQ(side.agent->getPluginParams(GetParam().backend, memories, parameters), NIXL_SUCCESS);
  EXPECT_NE(std::find(memories.begin(), memories.end(), FILE_SEG), memories.end());
  for (const auto& [name, value] : GetParam().parameters) {
    EXPECT_TRUE(parameters.contains(name)) << name;
    if (name == "mount_point") continue;
    nixlBackendH* made = nullptr;
    EXPECT_NE(side.agent->createBackend(GetParam().backend, {{name, "many"}}, made), NIXL_SUCCESS) << name;
  }
}

TEST_P(VendorFiles, ThatAreCutShortOrOnAFullDiskAreAnErrorOfThatRequestOnly) {
  Side side("vendor-short", 16 * 4096, nixlAgentConfig{}, false);
  ASSERT_EQ(side.agent->createBackend(GetParam().backend, GetParam().parameters, side.backend), NIXL_SUCCESS)
      << towline::nixl::last_error();
  ASSERT_EQ(side.agent->registerMem(side.registered()), NIXL_SUCCESS) << towline::nixl::last_error();
  std::ofstream(path) << std::string(16 * 4096, 'x');
  ASSERT_EQ(side.agent->registerMem(file(1'000'000, "rw:" + path)), NIXL_SUCCESS)
      << towline::nixl::last_error();
  nixlXferReqH* read = request(side, NIXL_READ, side.blocks(16, 4096), blocks(1'000'000), side.name);
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(run(*side.agent, read), NIXL_SUCCESS) << towline::nixl::last_error();
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  EXPECT_LT(run(*side.agent, read), 0);
  ASSERT_EQ(truncate(path.c_str(), 16 * 4096), 0);
  EXPECT_EQ(run(*side.agent, read), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(side.agent->releaseXferReq(read), NIXL_SUCCESS);
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a tmpfs";
  fill_disk(side, disk);
}

// The library is one, and of another version: functions that it should have are not there.
TEST_P(VendorFiles, OfALibraryThatLacksAFunctionAreNotListedAndTheErrorNamesIt) {
  const bool cufile = std::string(GetParam().file) == TOWLINE_FAKE_CUFILE;
  ::setenv(GetParam().variable, cufile ? TOWLINE_FAKE_USRBIO : TOWLINE_FAKE_CUFILE, 1);  // NOLINT
  const Side side("vendor-other", 4096, nixlAgentConfig{}, false);
  nixlBackendH* made = nullptr;
  EXPECT_EQ(side.agent->createBackend(GetParam().backend, {}, made), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(made, nullptr);
  for (const char* part : {"which needs", cufile ? "cuFileDriverOpen" : "hf3fs_iovcreate"})
    EXPECT_NE(towline::nixl::last_error().find(part), std::string::npos) << towline::nixl::last_error();
  std::vector<nixl_backend_t> plugins;
  ASSERT_EQ(side.agent->getAvailPlugins(plugins), NIXL_SUCCESS);
  EXPECT_EQ(std::find(plugins.begin(), plugins.end(), GetParam().backend), plugins.end());
}

// An agent is made for finding out, which takes milliseconds: it must not be made for each call.
TEST_P(VendorFiles, WhetherTheLibraryIsHereIsFoundOutOnce) {
  const Side side("vendor-once", 4096, nixlAgentConfig{}, false);
  nixl_b_params_t parameters;
  nixl_mem_list_t memories;
  ASSERT_EQ(side.agent->getPluginParams(GetParam().backend, memories, parameters), NIXL_SUCCESS);
  std::vector<nixl_backend_t> plugins;
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread reads it
  ::setenv("TOWLINE_WORKERS", "none", 1);  // no further agent can be made
  EXPECT_EQ(side.agent->getAvailPlugins(plugins), NIXL_SUCCESS);
  ::unsetenv("TOWLINE_WORKERS");
  // NOLINTEND(concurrency-mt-unsafe)
  EXPECT_NE(std::find(plugins.begin(), plugins.end(), GetParam().backend), plugins.end());
}

INSTANTIATE_TEST_SUITE_P(
    Libraries, VendorFiles,
    testing::Values(Library{"GDS",
                            "TOWLINE_GDS_LIBRARY",
                            TOWLINE_FAKE_CUFILE,
                            {{"batch_limit", "8"}, {"max_request_size", "65536"}}},
                    Library{"GDS_MT", "TOWLINE_GDS_LIBRARY", TOWLINE_FAKE_CUFILE, {{"thread_count", "2"}}},
                    Library{
                        "HF3FS", "TOWLINE_HF3FS_LIBRARY", TOWLINE_FAKE_USRBIO, {{"mount_point", "/tmp"}}}),
    [](const auto& tested) { return std::string(tested.param.backend); });

}  // namespace
}  // namespace compat

#include "base/os/memory_limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace towline {
namespace {

class MemoryLimitsTest : public testing::Test {
 protected:
  MemoryLimitsTest() {
    std::string name = (std::filesystem::temp_directory_path() / "towline_memory_XXXXXX").string();
    root_ = mkdtemp(name.data());
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\nSwapFree: 1000 kB\n");
  }
  ~MemoryLimitsTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  uint64_t available() const { return available_memory_bytes(root_.string()); }

  std::filesystem::path root_;
};

TEST_F(MemoryLimitsTest, WithoutCgroupsTheHostDecides) { EXPECT_EQ(available(), 9000u * 1024); }

TEST_F(MemoryLimitsTest, TheTightestCgroupAboveDecidesAndPageCacheIsFree) {
  write("proc/self/cgroup", "1:cpu:/x\n0::/slice/job\n");
  write("sys/fs/cgroup/slice/job/memory.max", "max\n");
  EXPECT_EQ(available(), 9000u * 1024);
  write("sys/fs/cgroup/slice/memory.max", "1000000\n");
  write("sys/fs/cgroup/slice/memory.current", "600000\n");
  EXPECT_EQ(available(), 400000u);
  write("sys/fs/cgroup/slice/memory.stat",
        "anon 5\nworkingset_inactive_file 7\ninactive_file 100000\nactive_file 50000\n");
  EXPECT_EQ(available(), 550000u);
  write("sys/fs/cgroup/slice/memory.current", "2000000\n");
  EXPECT_EQ(available(), 0u);
}

TEST_F(MemoryLimitsTest, AContainersRootCgroupCounts) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "4096\n");
  EXPECT_EQ(available(), 4096u);
}

TEST_F(MemoryLimitsTest, CgroupsOfTheFirstVersionCountAsWell) {
  write("proc/self/cgroup", "12:cpu:/x\n9:memory:/docker/1a2b\n1:name=systemd:/docker/1a2b\n0::/system\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available(), 9000u * 1024);
  write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "1000000\n");
  write("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "600000\n");
  write("sys/fs/cgroup/memory/docker/memory.stat",
        "active_file 1\ntotal_inactive_file 100000\ntotal_active_file 50000\n");
  EXPECT_EQ(available(), 550000u);
}

TEST_F(MemoryLimitsTest, AContainersRootCgroupOfTheFirstVersionCounts) {
  write("proc/self/cgroup", "9:memory:/docker/1a2b\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
  EXPECT_EQ(available(), 4096u);
}

TEST_F(MemoryLimitsTest, UnknownIsUnlimited) {
  std::filesystem::remove_all(root_ / "proc");
  EXPECT_EQ(available(), UINT64_MAX);
}

TEST(MemoryLimitsHostTest, ThisHostHasSome) { EXPECT_GT(available_memory_bytes(), 1u << 20); }

}  // namespace
}  // namespace towline

#include "fabric/ofi/shm_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/error.h"
#include "support/temporary_folder.h"

namespace towline::fabric {
namespace {

class ShmFiles : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  void make(const std::string& name) const { std::ofstream{path(name)} << "an endpoint"; }
  bool there(const std::string& name) const {
    return std::filesystem::is_symlink(path(name)) || std::filesystem::exists(path(name));
  }
  const char* folder() const { return text_.c_str(); }

  support::TemporaryFolder folder_;
  const std::string text_ = folder_.path();
};

TEST_F(ShmFiles, NamesAreNeverUsedAgain) {
  const std::string one = unique_shm_address();
  EXPECT_TRUE(one.starts_with("fi_shm://towline-fi-" + std::to_string(getpid()) + "-")) << one;
  EXPECT_NE(one, unique_shm_address());
}

TEST_F(ShmFiles, OnlyThoseThatNobodyHasLockedAreRemoved) {
  make("towline-fi-1-a:0:0");
  make("towline-fi-1-a:0:1");
  make("towline-fi-2-b:0:0");
  make("1:0:0");  // libfabric's own names
  std::filesystem::create_symlink("1:0:0", path("towline-fi-3-c:0:0"));
  std::filesystem::create_directory(path("towline-fi-4-d:0:0"));
  ASSERT_EQ(mkfifo(path("towline-fi-5-e:0:0").c_str(), 0600), 0);
  UniqueFd owner = lock_shm_file(std::string{"fi_shm://towline-fi-2-b:0:0\0", 28}, folder());
  ASSERT_TRUE(owner);
  EXPECT_EQ(remove_abandoned_shm_files(3600 * kSecondNs, folder()), 0u) << "they are new";
  EXPECT_EQ(remove_abandoned_shm_files(0, folder()), 2u);
  EXPECT_FALSE(there("towline-fi-1-a:0:0"));
  EXPECT_FALSE(there("towline-fi-1-a:0:1"));
  for (const char* kept :
       {"towline-fi-2-b:0:0", "1:0:0", "towline-fi-3-c:0:0", "towline-fi-4-d:0:0", "towline-fi-5-e:0:0"})
    EXPECT_TRUE(there(kept)) << kept;
  owner.reset();
  EXPECT_EQ(remove_abandoned_shm_files(0, folder()), 1u);
  EXPECT_EQ(remove_abandoned_shm_files(0, path("no-such-folder").c_str()), 0u);
}

TEST_F(ShmFiles, WhatIsNotThereOrNotOursIsNotLocked) {
  make("7:0:0");
  EXPECT_FALSE(lock_shm_file("fi_shm://7:0:0", folder()));
  EXPECT_FALSE(lock_shm_file("fi_shm://towline-fi-9-z:0:0", folder()));
}

// Between making and locking it, the owner was stopped for longer than a file is taken for new.
TEST_F(ShmFiles, ALockOfAFileThatIsBeingRemovedIsRefused) {
  make("towline-fi-1-a:0:0");
  const UniqueFd remover{open(path("towline-fi-1-a:0:0").c_str(), O_RDWR | O_CLOEXEC)};
  ASSERT_EQ(flock(remover.get(), LOCK_EX), 0);
  try {
    (void)lock_shm_file("fi_shm://towline-fi-1-a:0:0", folder());
    ADD_FAILURE() << "it was locked twice";
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), Status::kAgain);
  }
}

}  // namespace
}  // namespace towline::fabric

#include "storage/posix/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/os/memfd.h"
#include "support/temporary_folder.h"
#include "towline/plugin/backend.hpp"
#include "towline/storage.h"

namespace {

std::vector<std::string> synced;
bool plain_file_system = false;  // one that knows neither nameless files nor direct I/O

}  // namespace

// In place of the C library's: notes what is synced.
extern "C" int fsync(int fd) {
  std::array<char, PATH_MAX> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (::readlink(link.c_str(), path.data(), path.size() - 1) > 0) synced.emplace_back(path.data());
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

// The same: what a file system lacks is refused as the kernel refuses it.
extern "C" int openat(int folder, const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const auto mode = va_arg(more, mode_t);
  va_end(more);
  if (plain_file_system && (flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

extern "C" int open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const auto mode = va_arg(more, mode_t);
  va_end(more);
  if (plain_file_system && (flags & O_DIRECT) != 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

namespace towline::posix {
namespace {

File synced_file(const UniqueFd& fd) {
  towline_storage_args args = {};
  args.struct_size = sizeof args;
  args.fd = fd.get();
  args.access = TOWLINE_ACCESS_READ | TOWLINE_ACCESS_WRITE;
  args.sync = TOWLINE_SYNC_DATA;
  args.mode = 0600;
  return File(args);
}

// However late it asks: more jobs may wait for a thread than there are threads.
TEST(File, what_was_written_before_a_call_to_the_device_shares_it) {
  const UniqueFd fd = create_memfd("synced", 4096);
  const File file = synced_file(fd);
  const uint64_t one = file.next_sync();
  const uint64_t other = file.next_sync();
  EXPECT_EQ(file.sync(0, one), 0);
  const uint64_t later = file.next_sync();
  EXPECT_GT(later, one);
  EXPECT_EQ(file.sync(0, other), 0);
  EXPECT_EQ(file.next_sync(), later) << "a call of its own";
  EXPECT_EQ(file.sync(0, later), 0);
  EXPECT_GT(file.next_sync(), later) << "what was written after a call was taken for durable";
}

using support::TemporaryFolder;

towline_storage_args args_of(const std::string& uri, uint32_t flags, uint32_t sync = TOWLINE_SYNC_NONE) {
  towline_storage_args args = {};
  args.struct_size = sizeof args;
  args.uri = uri.c_str();
  args.access = TOWLINE_ACCESS_READ | TOWLINE_ACCESS_WRITE;
  args.flags = flags;
  args.sync = sync;
  args.mode = 0600;
  return args;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(File, a_commit_of_a_new_file_syncs_the_folder_that_has_its_name) {
  const TemporaryFolder folder;
  const std::string uri = "file:" + folder / "new";
  using Paths = std::vector<std::string>;
  {
    synced.clear();
    File file(args_of(uri, TOWLINE_STORAGE_CREATE));
    EXPECT_EQ(synced, Paths{});
    file.commit();
    EXPECT_EQ(synced, (Paths{folder / "new", folder.path()}));
    file.commit();
    EXPECT_EQ(synced, (Paths{folder / "new", folder.path(), folder / "new"})) << "once it has its name";
  }
  synced.clear();
  File(args_of(uri, TOWLINE_STORAGE_CREATE)).commit();
  EXPECT_EQ(synced, Paths{folder / "new"}) << "it was there already";
}

TEST(File, a_new_file_whose_writes_are_synced_has_its_name_on_the_device_before_them) {
  const TemporaryFolder folder;
  synced.clear();
  const File file(args_of("file:" + folder / "new", TOWLINE_STORAGE_CREATE, TOWLINE_SYNC_DATA));
  EXPECT_EQ(synced, std::vector<std::string>{folder.path()});
}

TEST(File, replacing_follows_a_symbolic_link) {
  const TemporaryFolder folder;
  const TemporaryFolder elsewhere;
  std::ofstream(elsewhere / "target") << "old";
  std::filesystem::create_symlink(elsewhere / "target", folder / "link");
  File file(args_of("file:" + folder / "link", TOWLINE_STORAGE_REPLACE));
  ASSERT_EQ(::write(file.fd(), "new", 3), 3);
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_FALSE(std::filesystem::is_symlink(elsewhere / "target"));
  EXPECT_EQ(contents(elsewhere / "target"), "new");
}

TEST(File, a_file_of_the_longest_name_is_replaced) {
  const TemporaryFolder folder;
  const std::string path = folder / std::string(NAME_MAX, 'n');
  std::ofstream(path) << "old";
  File file(args_of("file:" + path, TOWLINE_STORAGE_REPLACE));
  ASSERT_EQ(::write(file.fd(), "new", 3), 3);
  file.commit();
  EXPECT_EQ(contents(path), "new");
}

TEST(File, a_replacement_that_is_refused_leaves_nothing_behind) {
  const TemporaryFolder folder;
  plain_file_system = true;
  EXPECT_THROW(File(args_of("file:" + folder / "new", TOWLINE_STORAGE_REPLACE | TOWLINE_STORAGE_DIRECT)),
               plugin::Failure);
  plain_file_system = false;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Workers look at it for each plan, whatever another thread does.
TEST(File, a_commit_is_seen_by_other_threads) {
  const TemporaryFolder folder;
  File file(args_of("file:" + folder / "new", TOWLINE_STORAGE_REPLACE));
  std::thread looks([&] {
    while (!file.committed()) std::this_thread::yield();
  });
  file.commit();
  looks.join();
}

TEST(File, replacing_through_a_symbolic_link_to_nothing_is_refused) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(folder / "nothing", folder / "link");
  try {
    const File file(args_of("file:" + folder / "link", TOWLINE_STORAGE_REPLACE));
    FAIL() << "a link to nothing was replaced";
  } catch (const plugin::Failure& failure) {
    EXPECT_EQ(failure.status(), Status::kNotFound);
    EXPECT_NE(std::string(failure.what()).find(folder / "link"), std::string::npos) << failure.what();
  }
}

}  // namespace
}  // namespace towline::posix

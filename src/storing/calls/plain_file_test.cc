#include "storing/calls/plain_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/temporary_folder.h"
#include "towline/storage.h"
#include "towline/towline.h"

namespace {

bool knows_direct = true;  // the file system

}  // namespace

// In place of the C library's: where there is no direct I/O the kernel makes the file and then says so.
extern "C" int open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const auto mode = va_arg(more, mode_t);
  va_end(more);
  const auto descriptor =
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, knows_direct ? flags : flags & ~O_DIRECT, mode));
  if (descriptor < 0 || knows_direct || (flags & O_DIRECT) == 0) return descriptor;
  ::close(descriptor);
  errno = EINVAL;
  return -1;
}

namespace towline::calls {
namespace {

TEST(PlainFile, is_replaced_where_there_is_no_direct_io) {
  const support::TemporaryFolder folder;
  const std::string uri = "mine:" + folder / "file";
  std::ofstream(folder / "file") << "old";
  towline_storage_args args = {};
  args.struct_size = sizeof args;
  args.uri = uri.c_str();
  args.access = TOWLINE_ACCESS_READ | TOWLINE_ACCESS_WRITE;
  args.flags = TOWLINE_STORAGE_REPLACE | TOWLINE_STORAGE_DIRECT;
  args.mode = 0600;
  knows_direct = false;
  {
    PlainFile file("mine", args);
    EXPECT_FALSE(file.direct());
    ASSERT_EQ(::write(file.fd(), "new", 3), 3);
    file.commit();
  }
  knows_direct = true;
  std::ifstream replaced(folder / "file");
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(replaced), {}}), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1)
      << "and nothing is left";
}

}  // namespace
}  // namespace towline::calls

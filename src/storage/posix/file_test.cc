#include "storage/posix/file.h"

#include <gtest/gtest.h>

#include "base/memfd.h"
#include "towline/storage.h"

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

}  // namespace
}  // namespace towline::posix

#include "base/os/mapped.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace towline {
namespace {

TEST(Mapped, AHoleIsSeenWhereverItIs) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto start = reinterpret_cast<uint64_t>(memory);
  EXPECT_TRUE(is_mapped(start, 4 * page));
  EXPECT_TRUE(is_mapped(start + 1, 1));
  ASSERT_EQ(munmap(reinterpret_cast<void*>(start + 2 * page), page), 0);
  EXPECT_TRUE(is_mapped(start, 2 * page));
  EXPECT_TRUE(is_mapped(start + 3 * page, page));
  EXPECT_FALSE(is_mapped(start, 4 * page));
  EXPECT_FALSE(is_mapped(start + 2 * page - 1, 2));
  EXPECT_FALSE(is_mapped(start + 3 * page - 1, 1));
  ASSERT_EQ(mprotect(memory, 2 * page, PROT_NONE), 0);
  EXPECT_TRUE(is_mapped(start, 2 * page)) << "it is there, whoever may use it";
  munmap(memory, 2 * page);
  munmap(reinterpret_cast<void*>(start + 3 * page), page);
}

}  // namespace
}  // namespace towline

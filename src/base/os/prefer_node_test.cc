#include "base/os/prefer_node.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace towline {
namespace {

int policy() {
  int mode = -1;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 ? mode : -1;
}

TEST(PreferNode, LastsAsLongAsItLivesAndPutsBackWhatWasThere) {
  const int before = policy();
  const unsigned long first = 1;
  if (before < 0 || syscall(SYS_set_mempolicy, MPOL_PREFERRED, &first, 64) != 0)
    GTEST_SKIP() << "no memory policies here";
  ASSERT_EQ(syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0), 0);
  {
    const PreferNode prefer(0);
    EXPECT_EQ(policy(), MPOL_PREFERRED);
  }
  EXPECT_EQ(policy(), MPOL_DEFAULT);
  ASSERT_EQ(syscall(SYS_set_mempolicy, MPOL_BIND, &first, 64), 0);
  {
    const PreferNode prefer(0);
    EXPECT_EQ(policy(), MPOL_PREFERRED);
  }
  EXPECT_EQ(policy(), MPOL_BIND);
  ASSERT_EQ(syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0), 0);
}

TEST(PreferNode, ANodeThatIsNotThereChangesNothing) {
  const int before = policy();
  for (const std::optional<uint32_t> node :
       {std::optional<uint32_t>{}, std::optional<uint32_t>{1023}, std::optional<uint32_t>{100000}}) {
    const PreferNode prefer(node);
    EXPECT_EQ(policy(), before);
  }
}

}  // namespace
}  // namespace towline

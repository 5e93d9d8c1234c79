#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace towline {
namespace {

TEST(ErrorTest, CarriesCodeAndFormattedMessage) {
  try {
    fail(Status::kNotFound, "no {} in {}", "peer", 7);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kNotFound);
    EXPECT_STREQ(error.what(), "no peer in 7");
    return;
  }
  FAIL() << "nothing was thrown";
}

TEST(ErrorTest, ErrnoFailuresSayNameAndNumber) {
  try {
    fail_errno(ENOSPC, "writing {}", "x");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kNoSpace);
    EXPECT_STREQ(error.what(), "writing x: No space left on device (ENOSPC, 28)");
    return;
  }
  FAIL() << "nothing was thrown";
}

TEST(ErrorTest, LimitsAreNamedThatCanBeRaised) {
  EXPECT_EQ(errno_text(EMFILE), "Too many open files (EMFILE, 24; ulimit -n allows no more to this process)");
}

TEST(ErrorTest, EveryErrnoIsAnError) {
  for (int error = -1; error < 300; ++error) {
    EXPECT_TRUE(is_error(status_from_errno(error))) << error;
    EXPECT_FALSE(errno_text(error).empty());
  }
  EXPECT_EQ(status_from_errno(ECONNRESET), Status::kPeerLost);
  EXPECT_EQ(status_from_errno(EAGAIN), Status::kAgain);
  EXPECT_EQ(status_from_errno(123456), Status::kInternal);
}

}  // namespace
}  // namespace towline

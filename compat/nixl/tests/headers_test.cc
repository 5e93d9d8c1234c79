// NIXL's small headers, where its installation has them.
#include <gtest/gtest.h>
#include <utils/common/nixl_log.h>
#include <utils/common/nixl_time.h>
#include <utils/serdes/serdes.h>

#include <cerrno>
#include <string>

namespace {

TEST(Headers, TheClockGoesForwardInEveryUnit) {
  const nixlTime::sec_t seconds = nixlTime::getSec();
  const nixlTime::ms_t ms = nixlTime::getMs();
  const nixlTime::us_t us = nixlTime::getUs();
  const nixlTime::ns_t ns = nixlTime::getNs();
  EXPECT_GE(ms / 1000, seconds);
  EXPECT_GE(us / 1000, ms);
  EXPECT_GE(ns / 1000, us);
  const auto before = nixlTime::fastSteadyNow();
  EXPECT_LE(before, nixlTime::fastSteadyNow());
  EXPECT_FALSE(nixlTime::fastClockUsesHwCounter());
}

std::string said(void (*say)()) {
  testing::internal::CaptureStderr();
  say();
  return testing::internal::GetCapturedStderr();
}

TEST(Headers, LinesAreWrittenFromTheirLevelOn) {
  EXPECT_EQ(said([] { NIXL_ERROR << "one " << 1; }), "nixl on towline: error: one 1\n");
  EXPECT_EQ(said([] { NIXL_WARN << "two"; }), "nixl on towline: warning: two\n");
  EXPECT_EQ(said([] { NIXL_DEBUG << "three"; }), "");
  errno = ENOENT;
  EXPECT_EQ(said([] { NIXL_PERROR << "open"; }),
            "nixl on towline: error: open: " + nixl_strerror(ENOENT) + " [2]\n");
  EXPECT_EQ(said([] {
              if (errno < 0)
                NIXL_ERROR << "no";
              else
                NIXL_WARN << "else";
            }),
            "nixl on towline: warning: else\n");
  NIXL_ASSERT_ALWAYS(1 + 1 == 2) << "never said";
}

TEST(HeadersDeathTest, AFailedAssertionEndsTheProcess) {
  EXPECT_DEATH(NIXL_ASSERT_ALWAYS(1 + 1 == 3) << "sums", "Check failed: 1 \\+ 1 == 3 sums");
  EXPECT_DEATH(NIXL_FATAL << "the end", "fatal: the end");
}

TEST(Headers, SerdesIsWhereNixlHasIt) {
  nixlSerDes serdes;
  EXPECT_EQ(serdes.addStr("key", "value"), NIXL_SUCCESS);
  nixlSerDes read;
  EXPECT_EQ(read.importStr(serdes.exportStr()), NIXL_SUCCESS);
  EXPECT_EQ(read.getStr("key"), "value");
}

}  // namespace

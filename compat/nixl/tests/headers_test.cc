// NIXL's small headers, where its installation has them.
#include <common/configuration.h>
#include <common/mapped_region.h>
#include <common/nixl_duration.h>
#include <common/uuid_v4.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utils/common/nixl_log.h>
#include <utils/common/nixl_time.h>
#include <utils/serdes/serdes.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

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

TEST(Headers, ADurationIsCountedFromItsLastStart) {
  nixlTime::nixlDuration duration;
  while (duration.elapsed() < std::chrono::milliseconds(2)) continue;
  const nixlTime::ns_t before = nixlTime::getNs();
  duration.restart();
  const std::chrono::nanoseconds elapsed = duration.elapsed();
  EXPECT_LE(elapsed.count(), static_cast<int64_t>(nixlTime::getNs() - before));
}

TEST(Headers, IdentifiersAreRandomAndOfVersion4) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const nixl::UUIDv4 made;
    const std::string text = made.to_string();
    EXPECT_TRUE(std::regex_match(
        text, std::regex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")))
        << text;
    EXPECT_EQ(std::stoi(text.substr(0, 2), nullptr, 16), made.get_data()[0]);
    EXPECT_EQ(std::stoi(text.substr(34, 2), nullptr, 16), made.get_data()[15]);
    EXPECT_TRUE(seen.insert(text).second) << text;
  }
}

TEST(Headers, AMappingHasOneOwner) {
  const int fd = memfd_create("mapped", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  nixl::mappedRegion region(fd, 4096, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(region.valid());
  EXPECT_EQ(region.size(), 4096U);
  *static_cast<char*>(region.get()) = 'x';
  nixl::mappedRegion other(std::move(region));
  EXPECT_FALSE(region.valid());  // NOLINT(bugprone-use-after-move): its contract
  EXPECT_EQ(*static_cast<char*>(other.get()), 'x');
  unsigned char resident = 0;
  void* const page = other.get();
  EXPECT_EQ(mincore(page, 4096, &resident), 0);
  region = std::move(other);
  region.reset();
  EXPECT_FALSE(region.valid());
  EXPECT_EQ(mincore(page, 4096, &resident), -1) << "it is still mapped";
  const nixl::mappedRegion none(-1, 4096, PROT_READ, MAP_SHARED);
  EXPECT_EQ(errno, EBADF);
  EXPECT_FALSE(none.valid());
  EXPECT_EQ(none.size(), 0U);
  close(fd);
}

template <class>
struct Halves {
  static int convert(const std::string& text) { return std::stoi(text) / 2; }
};

TEST(Headers, SettingsHaveTheirTraits) {
  namespace config = nixl::config;
  ASSERT_EQ(setenv("TOWLINE_TEST_HEADERS", "42", 1), 0);
  EXPECT_EQ(config::getValue<int>("TOWLINE_TEST_HEADERS"), 42);
  EXPECT_EQ((config::getValue<int, Halves>("TOWLINE_TEST_HEADERS")), 21);
  EXPECT_EQ((config::getValueDefaulted<int, Halves>("TOWLINE_TEST_HEADERS_MISSING", 7)), 7);
  EXPECT_EQ(config::internal::getenvOptional("TOWLINE_TEST_HEADERS"), "42");
  EXPECT_EQ(config::internal::getenvOptional("TOWLINE_TEST_HEADERS_MISSING"), std::nullopt);
  EXPECT_EQ(config::internal::getenvDefaulted("TOWLINE_TEST_HEADERS_MISSING", "else"), "else");
  ASSERT_EQ(setenv("TOWLINE_TEST_HEADERS", "many", 1), 0);
  EXPECT_THROW((void)config::getValue<int>("TOWLINE_TEST_HEADERS"), std::runtime_error);
  int value = 0;
  EXPECT_EQ(config::getValueWithStatus(value, "TOWLINE_TEST_HEADERS"), NIXL_ERR_MISMATCH);
  EXPECT_EQ(config::getValueWithStatus(value, "TOWLINE_TEST_HEADERS_MISSING"), NIXL_ERR_NOT_FOUND);
  unsetenv("TOWLINE_TEST_HEADERS");
}

TEST(Headers, SerdesIsWhereNixlHasIt) {
  nixlSerDes serdes;
  EXPECT_EQ(serdes.addStr("key", "value"), NIXL_SUCCESS);
  nixlSerDes read;
  EXPECT_EQ(read.importStr(serdes.exportStr()), NIXL_SUCCESS);
  EXPECT_EQ(read.getStr("key"), "value");
}

}  // namespace

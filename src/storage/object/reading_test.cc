#include "storage/object/reading.h"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <vector>

#include "base/copy/crc32c.h"
#include "storage/object/checksum.h"

namespace towline::object {
namespace {

constexpr uint64_t kBytes = 1000;
constexpr uint64_t kStretch = 100;

// An object that was looked at, and its bytes.
class ReadingTest : public ::testing::Test {
 protected:
  ReadingTest() {
    for (uint64_t i = 0; i < kBytes; ++i) bytes_[i] = static_cast<uint8_t>(i * 7);
  }
  [[nodiscard]] Version version() const {
    return {.looked = true,
            .exists = true,
            .etag = "\"one\"",
            .bytes = kBytes,
            .crc32c = crc32c_text(crc32c(std::span(bytes_)))};
  }
  void read(Reading& reading, uint64_t begin, uint64_t bytes = kStretch) const {
    reading.read_stretch(object_, begin, bytes, crc32c(std::span(bytes_).subspan(begin, bytes)));
  }

  std::array<uint8_t, kBytes> bytes_ = {};
  const towline_storage_args args_ = {};
  Object object_{1, {"bucket", "key"}, args_, {}};
};

TEST_F(ReadingTest, is_of_the_version_that_was_met_first) {
  Reading reading(nullptr);
  const Object other(2, {"bucket", "other"}, args_, {});
  EXPECT_EQ(reading.wanted_version(object_), "");
  EXPECT_TRUE(reading.is_version(object_, "\"one\""));
  EXPECT_EQ(reading.wanted_version(object_), "\"one\"");
  EXPECT_FALSE(reading.is_version(object_, "\"two\""));
  EXPECT_TRUE(reading.is_version(other, "\"two\""));
  EXPECT_EQ(reading.wanted_version(other), "\"two\"");
}

TEST_F(ReadingTest, can_not_insist_on_a_weak_version_and_still_tells_another) {
  Reading reading(nullptr);
  EXPECT_TRUE(reading.is_version(object_, "W/\"one\""));
  EXPECT_EQ(reading.wanted_version(object_), "");
  EXPECT_FALSE(reading.is_version(object_, "W/\"two\""));
}

TEST_F(ReadingTest, compares_the_checksum_of_stretches_that_came_in_any_order) {
  object_.set_version(version());
  Reading reading(&object_);
  ASSERT_TRUE(reading.is_version(object_, "\"one\""));
  for (const uint64_t number : {3, 0, 9, 1, 2, 8, 4, 6, 5}) {
    read(reading, number * kStretch);
    EXPECT_EQ(reading.verify(), Status::kOk) << "not all of it has been read";
  }
  read(reading, 7 * kStretch);
  EXPECT_EQ(reading.verify(), Status::kOk);
}

TEST_F(ReadingTest, finds_a_stretch_that_is_not_what_was_written) {
  object_.set_version(version());
  Reading reading(&object_);
  ASSERT_TRUE(reading.is_version(object_, "\"one\""));
  bytes_[555] ^= 1;
  for (uint64_t at = 0; at < kBytes; at += kStretch) read(reading, at);
  EXPECT_EQ(reading.verify(), Status::kCorrupt);
}

TEST_F(ReadingTest, compares_nothing_where_the_checksum_is_of_something_else) {
  object_.set_version(version());
  bytes_[555] ^= 1;
  Reading other_version(&object_);
  ASSERT_TRUE(other_version.is_version(object_, "\"two\""));
  read(other_version, 0, kBytes);
  EXPECT_EQ(other_version.verify(), Status::kOk);
  Reading twice(&object_);
  ASSERT_TRUE(twice.is_version(object_, "\"one\""));
  read(twice, 0, kBytes);
  read(twice, 500);
  EXPECT_EQ(twice.verify(), Status::kOk);
}

TEST(Readings, are_the_same_for_all_submits_of_a_post_and_no_other) {
  Readings readings;
  const towline_post one = {sizeof one, 1, kBytes};
  const towline_post two = {sizeof two, 2, kBytes};
  const auto first = readings.join(one, nullptr);
  EXPECT_EQ(readings.join(one, nullptr), first);
  EXPECT_NE(readings.join(two, nullptr), first);
}

}  // namespace
}  // namespace towline::object

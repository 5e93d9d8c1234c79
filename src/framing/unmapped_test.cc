// Registered memory whose pages were unmapped, over sockets: the kernel tells.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "framing/connection.h"
#include "framing/test_support.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::Side;

constexpr std::size_t kMapped = 4u << 20;
constexpr uint32_t kBlock = 256u << 10;  // a frame each

class UnmappedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::LanePair lanes = testing::socket_lanes(kBlock);
    a_.connection.add_lane(std::move(lanes.first));
    b_.connection.add_lane(std::move(lanes.second));
    holed_ = static_cast<uint8_t*>(
        mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    ASSERT_NE(holed_, MAP_FAILED);
    std::memset(holed_, 'h', kMapped);
    whole_.assign(kMapped, 'w');
    holed_key_ = b_.host.add(holed_, kMapped);
    whole_key_ = b_.host.add(whole_.data(), kMapped);
    // Large frames before, so that nothing of the next ones is read ahead.
    ASSERT_EQ(run(1, TOWLINE_WRITE, whole_key_, holed_, whole_.data()), Status::kOk);
    ASSERT_EQ(run(2, TOWLINE_READ, whole_key_, holed_, whole_.data()), Status::kOk);
  }
  void TearDown() override { munmap(holed_, kMapped); }

  Status run(uint64_t cookie, uint32_t op, uint64_t key, const uint8_t* local, const uint8_t* remote,
             std::string_view message = {}) {
    plans_.push_back(std::make_unique<FakePlan>(key));
    for (std::size_t at = 0; at < kMapped; at += kBlock) plans_.back()->add(local + at, remote + at, kBlock);
    EXPECT_EQ(a_.submit(a_.prepare(plans_.back()->plan(), op), cookie, 0, kMapped, message),
              Status::kInProgress);
    for (int i = 0; i < 10000 && !a_.host.ended(cookie); ++i) {
      a_.progress();
      b_.progress();
    }
    return a_.host.ended(cookie) ? a_.host.status(cookie) : Status::kInProgress;
  }
  void make_hole() { ASSERT_EQ(munmap(holed_ + 5 * kBlock, kBlock), 0); }

  Side a_;
  Side b_;
  std::vector<std::unique_ptr<FakePlan>> plans_;
  uint8_t* holed_ = nullptr;
  std::vector<uint8_t> whole_;
  uint64_t holed_key_ = 0;
  uint64_t whole_key_ = 0;
};

TEST_F(UnmappedTest, AnOwnerRefusesWhatItCanNotPlaceAndGoesOn) {
  make_hole();
  std::size_t messages = 0;
  b_.host.on_message = [&](std::string_view) { ++messages; };
  EXPECT_EQ(run(3, TOWLINE_WRITE, holed_key_, whole_.data(), holed_, "never"), Status::kStale);
  EXPECT_EQ(a_.host.result(3).failed_begin, 5 * kBlock);
  EXPECT_GE(a_.host.result(3).failed_end, 6 * kBlock);
  EXPECT_EQ(a_.host.result(3).fences, 3u);
  EXPECT_EQ(messages, 0u);
  EXPECT_EQ(b_.host.pins_held(), 0u);
  EXPECT_EQ(std::memcmp(holed_, whole_.data(), 5 * kBlock), 0);
  EXPECT_EQ(run(4, TOWLINE_WRITE, whole_key_, whole_.data(), whole_.data()), Status::kOk);
}

TEST_F(UnmappedTest, AReadIntoItFailsAndTheConnectionGoesOn) {
  make_hole();
  EXPECT_EQ(run(3, TOWLINE_READ, whole_key_, holed_, whole_.data()), Status::kStale);
  EXPECT_EQ(a_.host.result(3).vendor_code, EFAULT);
  EXPECT_EQ(a_.host.result(3).fences, 3u);
  EXPECT_EQ(run(4, TOWLINE_READ, whole_key_, whole_.data(), whole_.data()), Status::kOk);
}

TEST_F(UnmappedTest, AWriteFromItIsToldFromTheOthersThatItsConnectionTakesAlong) {
  make_hole();
  plans_.push_back(std::make_unique<FakePlan>(whole_key_));
  plans_.back()->add(whole_.data(), whole_.data(), kMapped);
  towline_prepared* const other = a_.prepare(plans_.back()->plan(), TOWLINE_READ);
  ASSERT_EQ(a_.submit(other, 9, 0, kMapped), Status::kInProgress);
  EXPECT_EQ(run(3, TOWLINE_WRITE, whole_key_, holed_, whole_.data(), "never"), Status::kStale);
  EXPECT_EQ(a_.host.result(3).vendor_code, EFAULT);
  EXPECT_TRUE(a_.host.ended(9));
  EXPECT_NE(a_.host.status(9), Status::kStale);
  ASSERT_FALSE(a_.host.events.empty());
  EXPECT_NE(a_.host.events[0].text.find("not mapped any more"), std::string::npos) << a_.host.events[0].text;
}

TEST_F(UnmappedTest, AnAnswerFromItBreaksTheConnectionAndHurtsNobody) {
  make_hole();
  EXPECT_EQ(run(3, TOWLINE_READ, holed_key_, whole_.data(), holed_), Status::kPeerLost);
  ASSERT_FALSE(b_.host.events.empty());
  EXPECT_NE(b_.host.events[0].text.find("not mapped any more"), std::string::npos) << b_.host.events[0].text;
  EXPECT_EQ(b_.host.pins_held(), 0u);
}

}  // namespace
}  // namespace towline::framing

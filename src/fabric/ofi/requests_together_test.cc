// Over libfabric's shm, up to four requests of a chain go as one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "fabric/ofi/ofi.h"

namespace towline::fabric::requests_together_test {
namespace {

constexpr uint32_t kPage = 4096;
constexpr uint32_t kPages = 32;

struct Rail {
  Rail() : domain(make_ofi_domain({"shm", "", ""})), memory(2 * kPages * kPage) {
    key = domain->register_memory({memory.data(), memory.size(), true, true});
  }
  ~Rail() {
    domain->release(0);
    domain->deregister_memory(key);
  }
  uint64_t address(uint32_t page) const { return reinterpret_cast<uint64_t>(memory.data()) + page * kPage; }
  void poll(std::size_t capacity) {
    Completion got[64];
    const std::size_t count = domain->poll(got, capacity);
    EXPECT_LE(count, capacity);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(got[i].kind, CompletionKind::kRequest);
      EXPECT_EQ(got[i].status, Status::kOk);
      ++done[got[i].cookie];
    }
  }

  std::unique_ptr<Domain> domain;
  std::vector<uint8_t> memory;
  Registration key;
  std::map<uint64_t, int> done;  // by cookie
};

class RequestsTogether : public ::testing::Test {
 protected:
  RequestsTogether() {
    const auto here = mine_.domain->open(0, ConnectionEnd::kInitiator);
    const auto there = theirs_.domain->open(0, ConnectionEnd::kResponder);
    theirs_.domain->connect(0, here);
    mine_.domain->connect(0, there);
    // The first request makes them known to each other.
    EXPECT_TRUE(until([&] { return post(RequestKind::kWrite, 1, 1000) == 1; }, 64));
    EXPECT_TRUE(until([&] { return mine_.done.size() == 1; }, 64));
    mine_.done.clear();
    for (uint32_t i = 0; i < mine_.memory.size(); ++i) mine_.memory[i] = pattern(i, 1);
    for (uint32_t i = 0; i < theirs_.memory.size(); ++i) theirs_.memory[i] = pattern(i, 2);
  }

  static uint8_t pattern(uint32_t at, uint32_t side) {
    return static_cast<uint8_t>(at * 7 + at / kPage * 13 + side);
  }
  // Page 2 i here, and page 2 (31 - i) + 1 there.
  static uint32_t page_here(uint32_t i) { return 2 * i; }
  static uint32_t page_there(uint32_t i) { return 2 * (kPages - 1 - i) + 1; }

  std::size_t post(RequestKind kind, uint32_t count, uint64_t first_cookie) {
    std::vector<WorkRequest> requests(count);
    for (uint32_t i = 0; i < count; ++i) {
      requests[i].cookie = first_cookie + i;
      requests[i].local = mine_.address(page_here(i));
      requests[i].remote =
          theirs_.key.base + page_there(i) * kPage;  // an address, or where the memory begins
      requests[i].local_key = mine_.key.local_key;
      requests[i].remote_key = theirs_.key.remote_key;
      requests[i].length = kPage;
      requests[i].kind = kind;
      requests[i].signalled = true;
    }
    return mine_.domain->post(0, requests.data(), count);
  }
  template <class Finished>
  bool until(Finished&& finished, std::size_t capacity) {
    const uint64_t end_ns = monotonic_now_ns() + 20 * kSecondNs;
    while (!finished()) {
      mine_.poll(capacity);
      theirs_.poll(64);
      if (monotonic_now_ns() > end_ns) return false;
    }
    return true;
  }
  // Each was told once.
  void expect_told(uint32_t count) const {
    EXPECT_EQ(mine_.done.size(), count);
    for (const auto& [cookie, times] : mine_.done) EXPECT_EQ(times, 1) << cookie;
  }

  Rail mine_;
  Rail theirs_;
};

TEST_F(RequestsTogether, AChainOfSmallWritesIsTakenWholeAndEachPageIsPlacedAndToldOnce) {
  ASSERT_EQ(post(RequestKind::kWrite, kPages, 0), kPages);  // one by one, each waits for the one before it
  ASSERT_TRUE(until([&] { return mine_.done.size() == kPages; }, 64));
  expect_told(kPages);
  for (uint32_t i = 0; i < kPages; ++i) {
    const uint8_t* const from = &mine_.memory[page_here(i) * kPage];
    EXPECT_TRUE(std::equal(from, from + kPage, &theirs_.memory[page_there(i) * kPage])) << i;
    const uint32_t between = page_there(i) - 1;
    for (uint32_t at = between * kPage; at < (between + 1) * kPage; ++at)
      ASSERT_EQ(theirs_.memory[at], pattern(at, 2)) << "beside page " << i;
  }
}

TEST_F(RequestsTogether, FourReadsOfSeveralPlacesAreTakenAtOnceAndComeToTheirs) {
  ASSERT_GE(post(RequestKind::kRead, 4, 0), 4u);  // libfabric 1.17 takes no more at a time
  ASSERT_TRUE(until([&] { return mine_.done.size() == 4; }, 64));
  expect_told(4);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint8_t* const from = &theirs_.memory[page_there(i) * kPage];
    EXPECT_TRUE(std::equal(from, from + kPage, &mine_.memory[page_here(i) * kPage])) << i;
  }
}

TEST_F(RequestsTogether, TheirEndsWaitForACallerWithRoomForFewer) {
  ASSERT_EQ(post(RequestKind::kWrite, kPages, 0), kPages);
  ASSERT_TRUE(until([&] { return mine_.done.size() == kPages; }, 1));
  mine_.poll(64);
  expect_told(kPages);
}

}  // namespace
}  // namespace towline::fabric::requests_together_test

// The domain `ucx` by itself, over UCX's tcp within this process: what a peer may reach is checked by its owner.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/clock.h"
#include "fabric/rails.h"

namespace towline::fabric {
namespace {

constexpr std::size_t kBytes = 256 << 10;

class UcxDomainTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "UCX has threads of its own, which ThreadSanitizer can't follow";
#endif
    mine = make_rail("ucx:tcp");
    theirs = make_rail("ucx:tcp");
    const auto here = mine->open(3, ConnectionEnd::kInitiator);
    const auto there = theirs->open(5, ConnectionEnd::kResponder);
    mine->connect(3, there);
    theirs->connect(5, here);
    std::iota(from.begin(), from.end(), uint8_t{1});
    source = mine->register_memory({.address = from.data(), .bytes = kBytes});
  }
  Registration share(bool readable, bool writable) {
    return theirs->register_memory(
        {.address = to.data(), .bytes = kBytes, .remote_read = readable, .remote_write = writable});
  }
  std::size_t post(RequestKind kind, const Registration& target, uint64_t offset, uint32_t bytes) {
    const WorkRequest request{.cookie = 77,
                              .local = reinterpret_cast<uint64_t>(from.data()),
                              .remote = target.base + offset,
                              .local_key = source.local_key,
                              .remote_key = target.remote_key,
                              .immediate = 0,
                              .length = bytes,
                              .kind = kind,
                              .signalled = true};
    return mine->post(3, &request, 1);
  }
  // The first completion on this side.
  std::optional<Completion> outcome() {
    const uint64_t end_ns = monotonic_now_ns() + 20 * kSecondNs;
    std::array<Completion, 8> told{};
    while (monotonic_now_ns() < end_ns) {
      (void)theirs->poll(told.data(), told.size());
      if (mine->poll(told.data(), 1) != 0) return told[0];
    }
    return std::nullopt;
  }
  void expect_refused(Status why) {
    const auto told = outcome();
    ASSERT_TRUE(told);
    EXPECT_EQ(told->kind, CompletionKind::kRequest);  // so that the engine does not try it again
    EXPECT_EQ(told->cookie, 77u);
    EXPECT_EQ(told->status, why);
  }

  std::vector<uint8_t> from = std::vector<uint8_t>(kBytes);
  std::vector<uint8_t> to = std::vector<uint8_t>(kBytes);
  std::unique_ptr<Domain> mine;  // go before the memory
  std::unique_ptr<Domain> theirs;
  Registration source;
};

TEST_F(UcxDomainTest, WritesAndReadsArriveWhole) {
  const Registration target = share(true, true);
  ASSERT_EQ(post(RequestKind::kWrite, target, 0, kBytes), 1u);
  auto told = outcome();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->kind, CompletionKind::kRequest);
  EXPECT_EQ(told->status, Status::kOk);
  EXPECT_EQ(to, from);
  std::fill(from.begin(), from.end(), uint8_t{0});
  ASSERT_EQ(post(RequestKind::kRead, target, 100, kBytes - 100), 1u);
  told = outcome();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->status, Status::kOk);
  EXPECT_TRUE(std::equal(to.begin() + 100, to.end(), from.begin()));
}

// Up to 1 MiB in one message.
TEST_F(UcxDomainTest, LargeWritesAndReadsArriveWhole) {
  constexpr std::size_t kLarge = (2 << 20) + 3;
  std::vector<uint8_t> source_bytes(kLarge);
  std::vector<uint8_t> target_bytes(kLarge);
  for (std::size_t i = 0; i < kLarge; ++i) source_bytes[i] = static_cast<uint8_t>(i * 7 + i / 4096);
  const Registration here = mine->register_memory({.address = source_bytes.data(), .bytes = kLarge});
  const Registration there = theirs->register_memory(
      {.address = target_bytes.data(), .bytes = kLarge, .remote_read = true, .remote_write = true});
  for (const uint32_t bytes : {1u << 20, (1u << 20) - 1, (1u << 20) + 1, uint32_t{kLarge}}) {
    for (const RequestKind kind : {RequestKind::kWrite, RequestKind::kRead}) {
      SCOPED_TRACE(bytes);
      std::vector<uint8_t>& filled = kind == RequestKind::kWrite ? target_bytes : source_bytes;
      std::fill(filled.begin(), filled.end(), uint8_t{0});
      const WorkRequest request{.cookie = 77,
                                .local = reinterpret_cast<uint64_t>(source_bytes.data()) + kLarge - bytes,
                                .remote = there.base + kLarge - bytes,
                                .local_key = here.local_key,
                                .remote_key = there.remote_key,
                                .immediate = 0,
                                .length = bytes,
                                .kind = kind,
                                .signalled = true};
      ASSERT_EQ(mine->post(3, &request, 1), 1u);
      const auto told = outcome();
      ASSERT_TRUE(told);
      ASSERT_EQ(told->status, Status::kOk);
      EXPECT_TRUE(std::equal(source_bytes.end() - bytes, source_bytes.end(), target_bytes.end() - bytes));
      for (std::size_t i = 0; i < kLarge; ++i) source_bytes[i] = static_cast<uint8_t>(i * 7 + i / 4096);
    }
  }
}

// Reads of single pages are answered several in a message, longer ones in pieces; both in any order.
TEST_F(UcxDomainTest, ReadsThatAreAskedForTogetherEachGetTheirBytes) {
  const Registration target = share(true, true);
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<uint8_t>(i * 7 + i / 4096);
  constexpr uint32_t kLengths[] = {4096, 1, 4096, 100, 8192, 40'000, 4096, 0x8000, 3, 4096};
  std::vector<WorkRequest> requests;
  uint64_t at = 0;
  for (int i = 0; i < 40 && at + kLengths[i % 10] <= kBytes; ++i) {
    const uint32_t length = kLengths[i % 10];
    requests.push_back({.cookie = static_cast<uint64_t>(i),
                        .local = reinterpret_cast<uint64_t>(from.data()) + at,
                        .remote = target.base + kBytes - at - length,
                        .local_key = source.local_key,
                        .remote_key = target.remote_key,
                        .immediate = 0,
                        .length = length,
                        .kind = RequestKind::kRead,
                        .signalled = true});
    at += length;
  }
  ASSERT_EQ(mine->post(3, requests.data(), requests.size()), requests.size());
  for (const WorkRequest& request : requests) {
    const auto told = outcome();
    ASSERT_TRUE(told);
    ASSERT_EQ(told->status, Status::kOk);
    EXPECT_EQ(told->cookie, request.cookie);
    EXPECT_EQ(0, std::memcmp(reinterpret_cast<const void*>(request.local),
                             reinterpret_cast<const void*>(request.remote), request.length))
        << request.length << " bytes of read " << request.cookie;
  }
}

TEST_F(UcxDomainTest, AReadThatIsRefusedAmongOthersIsNamed) {
  const Registration target = share(true, true);
  std::vector<WorkRequest> requests(6);
  for (uint64_t i = 0; i < requests.size(); ++i)
    requests[i] = {.cookie = 77 + i,
                   .local = reinterpret_cast<uint64_t>(from.data()) + i * 4096,
                   .remote = target.base + (i == 3 ? kBytes - 4095 : i * 4096),
                   .local_key = source.local_key,
                   .remote_key = target.remote_key,
                   .immediate = 0,
                   .length = 4096,
                   .kind = RequestKind::kRead,
                   .signalled = true};
  ASSERT_EQ(mine->post(3, requests.data(), requests.size()), requests.size());
  auto told = outcome();
  while (told && told->status == Status::kOk && told->cookie < 80) told = outcome();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->kind, CompletionKind::kRequest);
  EXPECT_EQ(told->cookie, 80u);
  EXPECT_EQ(told->status, Status::kOutOfRange);
}

TEST_F(UcxDomainTest, WritesBeyondTheRegistrationAreRefused) {
  const Registration target = share(true, true);
  ASSERT_EQ(post(RequestKind::kWrite, target, kBytes - 4, 8), 1u);
  expect_refused(Status::kOutOfRange);
  EXPECT_EQ(to, std::vector<uint8_t>(kBytes));
}

TEST_F(UcxDomainTest, ReadsBeforeTheRegistrationAreRefused) {
  const Registration target = share(true, true);
  ASSERT_EQ(post(RequestKind::kRead, target, uint64_t{0} - 8, 8), 1u);
  expect_refused(Status::kOutOfRange);
}

TEST_F(UcxDomainTest, RightsAreKept) {
  const Registration target = share(true, false);
  ASSERT_EQ(post(RequestKind::kWrite, target, 0, 64), 1u);
  expect_refused(Status::kPermissionDenied);
  EXPECT_EQ(to, std::vector<uint8_t>(kBytes));
}

TEST_F(UcxDomainTest, WhatIsNotRegisteredAnyMoreIsStale) {
  const Registration target = share(true, true);
  theirs->deregister_memory(target);
  ASSERT_EQ(post(RequestKind::kWrite, target, 0, 64), 1u);
  expect_refused(Status::kStale);
  EXPECT_EQ(to, std::vector<uint8_t>(kBytes));
}

// UCX has the pages in its hands until they are sent.
TEST_F(UcxDomainTest, DeregisteringMemoryThatIsBeingReadEndsTheConnection) {
  const Registration target = share(true, true);
  ASSERT_EQ(post(RequestKind::kWrite, target, 0, 64), 1u);  // connects
  ASSERT_TRUE(outcome());
  std::array<Completion, 8> told{};
  for (int i = 0; i < 400; ++i) {  // this side does not poll, so what it asked for gets stuck
    (void)post(RequestKind::kRead, target, 0, kBytes);
    (void)theirs->poll(told.data(), told.size());
  }
  theirs->deregister_memory(target);
  const uint64_t end_ns = monotonic_now_ns() + 20 * kSecondNs;
  bool down = false;
  while (!down && monotonic_now_ns() < end_ns) {
    const std::size_t count = theirs->poll(told.data(), told.size());
    for (std::size_t i = 0; i < count; ++i) down = down || told[i].kind == CompletionKind::kConnectionDown;
  }
  EXPECT_TRUE(down);
}

}  // namespace
}  // namespace towline::fabric

#include "base/os/poller.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/sync/wake.h"

namespace towline {
namespace {

TEST(PollerTest, ReportsExactlyTheReadyOnesWithTheirContext) {
  std::vector<EventFd> events(5);
  Poller poller;
  for (EventFd& event : events) poller.add(event.fd(), EPOLLIN, &event);
  std::array<PollEvent, 8> out;
  EXPECT_EQ(poller.wait(out, 0), 0u);
  events[1].signal();
  events[3].signal();
  ASSERT_EQ(poller.wait(out, kNoDeadline), 2u);
  EXPECT_EQ((std::set<void*>{out[0].context, out[1].context}), (std::set<void*>{&events[1], &events[3]}));
  EXPECT_EQ(out[0].events, static_cast<uint32_t>(EPOLLIN));
}

TEST(PollerTest, ModifiedAndRemovedDescriptorsAreQuiet) {
  EventFd event;
  Poller poller;
  poller.add(event.fd(), EPOLLIN, nullptr);
  event.signal();
  std::array<PollEvent, 1> out;
  poller.modify(event.fd(), 0, nullptr);
  EXPECT_EQ(poller.wait(out, 0), 0u);
  poller.modify(event.fd(), EPOLLIN, &event);
  ASSERT_EQ(poller.wait(out, 0), 1u);
  EXPECT_EQ(out[0].context, &event);
  poller.remove(event.fd());
  poller.remove(event.fd());
  EXPECT_EQ(poller.wait(out, 0), 0u);
}

TEST(PollerTest, MisuseIsAnError) {
  EventFd event;
  Poller poller;
  EXPECT_THROW(poller.modify(event.fd(), EPOLLIN, nullptr), Error);
  EXPECT_THROW(poller.add(-1, EPOLLIN, nullptr), Error);
  poller.add(event.fd(), EPOLLIN, nullptr);
  EXPECT_THROW(poller.add(event.fd(), EPOLLIN, nullptr), Error);
}

TEST(PollerTest, ATimeoutIsNeverEarly) {
  Poller poller;
  std::array<PollEvent, 1> out;
  const uint64_t start_ns = monotonic_now_ns();
  EXPECT_EQ(poller.wait(out, 1'500'000), 0u);
  EXPECT_GE(monotonic_now_ns() - start_ns, 1'500'000u);
}

TEST(PollerTest, ASignalFromAnotherThreadWakesIt) {
  EventFd event;
  Poller poller;
  poller.add(event.fd(), EPOLLIN, &event);
  std::thread other([&] { event.signal(); });
  std::array<PollEvent, 4> out;
  EXPECT_EQ(poller.wait(out, kNoDeadline), 1u);
  other.join();
}

}  // namespace
}  // namespace towline

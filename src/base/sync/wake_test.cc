#include "base/sync/wake.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace towline {
namespace {

bool readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

TEST(EventFdTest, SignalsAddUpUntilDrained) {
  EventFd event;
  EXPECT_FALSE(readable(event.fd()));
  EXPECT_EQ(event.drain(), 0u);
  event.signal();
  event.signal();
  EXPECT_TRUE(readable(event.fd()));
  EXPECT_EQ(event.drain(), 2u);
  EXPECT_FALSE(readable(event.fd()));
}

}  // namespace
}  // namespace towline

#include "base/os/poller.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/sync/wake_path.h"

namespace towline {
namespace {

// Kernels before 5.11 have no nanosecond timeout; there, round up to milliseconds so as never to return
// early.
std::atomic<bool> has_pwait2{true};

int wait_milliseconds(int epoll, epoll_event* events, int count, uint64_t timeout_ns) noexcept {
  int timeout_ms = -1;
  if (timeout_ns != kNoDeadline) {
    const uint64_t rounded = timeout_ns / kMillisecondNs + (timeout_ns % kMillisecondNs != 0 ? 1 : 0);
    timeout_ms = static_cast<int>(std::min<uint64_t>(rounded, INT_MAX));
  }
  return epoll_wait(epoll, events, count, timeout_ms);
}

TOWLINE_WAKE_PATH int wait_once(int epoll, epoll_event* events, int count, uint64_t timeout_ns) noexcept {
  if (timeout_ns == 0 || !has_pwait2.load(std::memory_order_relaxed)) {
    return wait_milliseconds(epoll, events, count, timeout_ns);
  }
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / kSecondNs);
  timeout.tv_nsec = static_cast<long>(timeout_ns % kSecondNs);
  const int got = epoll_pwait2(epoll, events, count, timeout_ns == kNoDeadline ? nullptr : &timeout, nullptr);
  if (got >= 0 || (errno != ENOSYS && errno != EPERM)) return got;
  has_pwait2.store(false, std::memory_order_relaxed);
  return wait_milliseconds(epoll, events, count, timeout_ns);
}

}  // namespace

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) fail_errno(errno, "creating an epoll instance");
}

void Poller::add(int fd, uint32_t events, void* context) {
  epoll_event event{.events = events, .data = {.ptr = context}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    fail_errno(errno, "adding file descriptor {} to a poller for events {:#x}", fd, events);
  }
}

void Poller::modify(int fd, uint32_t events, void* context) {
  epoll_event event{.events = events, .data = {.ptr = context}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    fail_errno(errno, "changing the events of file descriptor {} in a poller to {:#x}", fd, events);
  }
}

void Poller::remove(int fd) noexcept {
  epoll_event unused{};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &unused) != 0) {
    TOWLINE_DCHECK(errno == ENOENT || errno == EBADF || errno == EPERM, "epoll_ctl: errno {}", errno);
  }
}

TOWLINE_WAKE_PATH std::size_t Poller::wait(std::span<PollEvent> out, uint64_t timeout_ns) noexcept {
  epoll_event events[kMostEventsPerWait];
  const auto most = static_cast<int>(std::min(out.size(), kMostEventsPerWait));
  if (most == 0) return 0;
  const int got = wait_once(epoll_.get(), events, most, timeout_ns);
  if (got < 0) {
    TOWLINE_CHECK(errno == EINTR, "epoll wait: errno {}", errno);
    return 0;
  }
  for (int i = 0; i < got; ++i) {
    out[static_cast<std::size_t>(i)] = {.context = events[i].data.ptr, .events = events[i].events};
  }
  return static_cast<std::size_t>(got);
}

}  // namespace towline

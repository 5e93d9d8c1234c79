// For tests: a zero-copy receive ring over ordinary sockets. Bytes arrive in pages of the area in random order, in pieces of
// random length, and a page that is not out can't be given back.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/os/unique_fd.h"
#include "base/random.h"
#include "transports/tcpx/kernel/zcrx_ring.h"

namespace towline::tcpx::testing {

// A ring's counters, read while it runs.
struct ZcrxSeen {
  std::atomic<uint32_t> bad_refills{0};  // of pages that were not out
  std::atomic<uint32_t> pages_out{0};
  std::atomic<uint32_t> refused{0};  // receives that found no page
};

class FakeZcrxRing final : public ZcrxRing {
 public:
  using Distort = std::function<void(ZcrxCompletion&)>;

  FakeZcrxRing(std::span<uint8_t> area, ZcrxSeen& seen, Distort distort)
      : area_(area),
        seen_(seen),
        distort_(std::move(distort)),
        poke_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        out_(area.size() / kPage) {
    for (uint32_t page = 0; page < out_.size(); ++page) free_.push_back(page);
  }

  void receive(int socket, uint32_t user) noexcept override { sockets_[user] = socket; }
  void cancel(uint32_t user) noexcept override {
    if (sockets_.erase(user) != 0) completions_.push_back({user, -ECANCELED, false, 0});
  }
  int wait(bool for_completions) noexcept override {
    if (for_completions && !completions_.empty()) return 0;
    std::vector<pollfd> polls = {{poke_.get(), POLLIN, 0}};
    std::vector<uint32_t> users = {0};
    if (for_completions)
      for (const auto& [user, socket] : sockets_) {
        polls.push_back({socket, POLLIN, 0});
        users.push_back(user);
      }
    (void)::poll(polls.data(), polls.size(), -1);
    uint64_t count = 0;
    if (polls[0].revents != 0) (void)!::read(poke_.get(), &count, sizeof count);
    for (std::size_t i = 1; i < polls.size(); ++i)
      if (polls[i].revents != 0) take(users[i], polls[i].fd);
    return 0;
  }
  bool next(ZcrxCompletion& out) noexcept override {
    if (completions_.empty()) return false;
    out = completions_.front();
    completions_.pop_front();
    return true;
  }
  bool refill(uint64_t offset, uint32_t) noexcept override {
    if (given_back_.size() == kRefills) return false;
    given_back_.push_back(static_cast<uint32_t>(offset / kPage));
    return true;
  }
  void flush(bool) noexcept override {
    for (const uint32_t page : given_back_) {
      if (page >= out_.size() || !out_[page]) {
        ++seen_.bad_refills;
        continue;
      }
      out_[page] = false;
      --seen_.pages_out;
      free_.push_back(page);
    }
    given_back_.clear();
  }
  void poke() noexcept override {
    const uint64_t one = 1;
    (void)!::write(poke_.get(), &one, sizeof one);
  }

 private:
  static constexpr uint32_t kPage = 4096;
  static constexpr std::size_t kRefills = 16;

  void end(uint32_t user, int32_t result) {
    sockets_.erase(user);
    completions_.push_back({user, result, false, 0});
  }
  void take(uint32_t user, int socket) {
    for (int i = 0; i < 8; ++i) {
      if (free_.empty()) {
        ++seen_.refused;
        return end(user, -ENOMEM);
      }
      std::swap(free_[random_.between(0, free_.size() - 1)], free_.back());
      const uint32_t page = free_.back();
      const ssize_t n =
          ::recv(socket, area_.data() + std::size_t{page} * kPage, random_.between(1, kPage), MSG_DONTWAIT);
      if (n == 0) return end(user, 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n < 0) return end(user, -errno);
      free_.pop_back();
      out_[page] = true;
      ++seen_.pages_out;
      completions_.push_back({user, static_cast<int32_t>(n), true, uint64_t{page} * kPage});
      if (distort_) distort_(completions_.back());
    }
  }

  const std::span<uint8_t> area_;
  ZcrxSeen& seen_;
  const Distort distort_;
  const UniqueFd poke_;
  Random random_{11};
  std::map<uint32_t, int> sockets_;
  std::deque<ZcrxCompletion> completions_;
  std::vector<uint32_t> given_back_;
  std::vector<uint32_t> free_;
  std::vector<bool> out_;
};

inline OpenZcrxRing fake_zcrx_ring(ZcrxSeen& seen, FakeZcrxRing::Distort distort = {}) {
  return [&seen, distort](std::span<uint8_t> area, uint32_t) {
    return std::make_unique<FakeZcrxRing>(area, seen, distort);
  };
}

}  // namespace towline::tcpx::testing

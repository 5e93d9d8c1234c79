// For tests and the fuzzer: a zero-copy receive ring that says what a script holds, true or not, and checks what comes
// back: only pieces that it gave out inside of the area, each once.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/os/unique_fd.h"
#include "transports/tcpx/kernel/zcrx_ring.h"

namespace towline::tcpx::testing {

// Shared by a test's thread and the pump's; outlives the ring.
class ZcrxScript {
 public:
  struct Step {
    ZcrxCompletion completion;
    bool breaks = false;  // the ring itself fails instead
  };

  void add(const Step& step) {
    const std::lock_guard lock(mutex_);
    if (!broken_) steps_.push_back(step);
  }
  // The pump looks again.
  void wake() const noexcept {
    const uint64_t one = 1;
    (void)!::write(poke_.get(), &one, sizeof one);
  }
  // All was said, and the pump waits.
  [[nodiscard]] bool over() {
    const std::lock_guard lock(mutex_);
    return steps_.empty() && waiting_;
  }
  [[nodiscard]] std::size_t pieces_out() {
    const std::lock_guard lock(mutex_);
    return out_.size();
  }

  std::atomic<uint32_t> received{0};     // requests to receive
  std::atomic<uint32_t> bad_refills{0};  // of pieces that were not out

 private:
  friend class ScriptedZcrxRing;

  const UniqueFd poke_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex_;
  std::deque<Step> steps_;
  std::multiset<std::pair<uint64_t, uint64_t>> out_;  // offset, bytes
  bool waiting_ = false;
  bool broken_ = false;
};

class ScriptedZcrxRing final : public ZcrxRing {
 public:
  ScriptedZcrxRing(ZcrxScript& script, std::size_t area_bytes) : script_(script), area_bytes_(area_bytes) {}

  void receive(int, uint32_t) noexcept override { ++script_.received; }
  void cancel(uint32_t user) noexcept override { script_.add({{user, -ECANCELED, false, 0}, false}); }
  int wait(bool for_completions) noexcept override {
    {
      const std::lock_guard lock(script_.mutex_);
      auto& steps = script_.steps_;
      if (for_completions && !steps.empty()) {
        if (!steps.front().breaks) return 0;
        steps.clear();  // nothing is said after it, also of what is added then
        script_.broken_ = true;
        return EIO;
      }
      script_.waiting_ = true;
    }
    pollfd poke = {script_.poke_.get(), POLLIN, 0};
    (void)::poll(&poke, 1, -1);
    const std::lock_guard lock(script_.mutex_);
    script_.waiting_ = false;
    uint64_t count = 0;
    (void)!::read(script_.poke_.get(), &count, sizeof count);
    return 0;
  }
  bool next(ZcrxCompletion& out) noexcept override {
    const std::lock_guard lock(script_.mutex_);
    auto& steps = script_.steps_;
    if (steps.empty() || steps.front().breaks) return false;
    out = steps.front().completion;
    steps.pop_front();
    if (out.more)
      if (const auto place = place_in_area(out, area_bytes_))
        script_.out_.insert({*place, static_cast<uint64_t>(out.result)});
    return true;
  }
  bool refill(uint64_t offset, uint32_t bytes) noexcept override {
    if (++refills_ % 5 == 0) return false;  // the caller tries again
    const std::lock_guard lock(script_.mutex_);
    const auto found = script_.out_.find({offset, bytes});
    if (found == script_.out_.end())
      ++script_.bad_refills;
    else
      script_.out_.erase(found);
    return true;
  }
  void flush(bool) noexcept override {}
  void poke() noexcept override { script_.wake(); }

 private:
  ZcrxScript& script_;
  const std::size_t area_bytes_;
  uint32_t refills_ = 0;
};

}  // namespace towline::tcpx::testing

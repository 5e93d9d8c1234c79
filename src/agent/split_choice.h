// Chooses whether a large post goes whole, over the connection of one worker, or in parts over those of all workers. One
// core moves a few GB/s through sockets; more cores move more where the network and the processors allow it, and less
// where they don't. Both ways are tried, for each peer, direction and size class, and the quicker one is kept.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/copy/quicker_way.h"

namespace towline {

enum class SplitMode : uint8_t { kAuto, kOn, kOff };  // tuning.split

// Any thread.
class SplitChoice {
 public:
  // Whether a post that begins now should be split. Begins with whole posts.
  [[nodiscard]] bool split() const noexcept {
    const std::lock_guard lock(mutex_);
    return splits();
  }
  // All bytes of a post have moved. Its time counts from the end of the post before it, if that ended later than this
  // one began: posts in flight at once wait for each other.
  void ended(bool was_split, uint64_t began_ns, uint64_t now_ns, uint64_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const uint64_t since_ns = std::max(began_ns, last_end_ns_);
    last_end_ns_ = std::max(last_end_ns_, now_ns);
    if (was_split != splits() || now_ns <= since_ns) return;
    way_.took((now_ns - since_ns) * 1024 / (bytes >> 10));
  }

 private:
  [[nodiscard]] bool splits() const noexcept { return !way_.second(); }

  mutable std::mutex mutex_;
  // The first split posts prepare their parts at the other workers; a whole post finds all as it was. Posts take long, and
  // trying the slower way more often than needed would be seen: a post of 64 MiB by one core takes as long as three by four.
  QuickerWay<2, 3, 2, true> way_;
  uint64_t last_end_ns_ = 0;
};

// Those of one peer.
class SplitChoices {
 public:
  static constexpr uint64_t kLeastBytes =
      4u << 20;  // of a post: smaller ones are over before other threads are awake

  [[nodiscard]] SplitChoice& of(uint32_t op, uint64_t bytes) noexcept {
    const auto size = static_cast<std::size_t>(std::bit_width(bytes / kLeastBytes)) - 1;
    return choices_[op % choices_.size()][std::min(size / 2, kClasses - 1)];
  }
  // True at most once a second: connections that are missing may be asked for.
  [[nodiscard]] bool may_connect(uint64_t now_ns) noexcept {
    const std::lock_guard lock(mutex_);
    if (now_ns < next_connect_ns_) return false;
    next_connect_ns_ = now_ns + kSecondNs;
    return true;
  }

 private:
  static constexpr std::size_t kClasses = 3;  // from 4 MiB, 16 MiB, 64 MiB

  std::array<std::array<SplitChoice, kClasses>, 2> choices_;
  std::mutex mutex_;
  uint64_t next_connect_ns_ = 0;
};

}  // namespace towline

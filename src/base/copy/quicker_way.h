// Chooses the faster of two methods for the same work by measuring both: the answer depends on the machine,
// the contents of its caches and the load of its processors.
//
// Tries both, keeps the faster one and tries the other again from time to time, less and less often while it
// stays slower. A trial is kTrial samples, after kSettling that do not count; a method is judged by the best
// of kBestOf consecutive trials, since the first ones may cost more. With kHasty trials of work that takes long end
// early: the way that it begins with is judged by one trial, and a look at the other way ends when two samples that
// count were each far above what the kept way costs. A later look at the way that it began with has nothing to settle.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace towline {

template <uint32_t kSettling, uint32_t kTrial, uint32_t kBestOf = 1, bool kHasty = false>
class QuickerWay {
 public:
  // Begins with the second way.
  [[nodiscard]] bool second() const noexcept { return second_; }

  // Records the cost of work done that way: nanoseconds, in total or per byte.
  void took(uint64_t cost) noexcept {
    if (++samples_ <= kSettling) return;
    spent_ += cost;
    if (kHasty && gives_up(cost)) {
      costs_[second_ ? 1 : 0] = cost * kTrial;
      return stop_looking();
    }
    if (samples_ < kSettling + kTrial) return;
    samples_ = kSettling;
    best_ = std::min(best_, spent_);
    spent_ = 0;
    const bool begins = kHasty && costs_[0] == 0 && costs_[1] == 0;
    if (++tried_ < kBestOf && !begins) return;
    tried_ = 0;
    const uint64_t best = std::exchange(best_, UINT64_MAX);
    uint64_t& mine = costs_[second_ ? 1 : 0];
    mine = mine == 0 ? best + 1 : (mine + best + 1) / 2;
    decide();
  }

 private:
  static constexpr uint32_t kLookAgain = 16;  // trials of the quicker way, at first
  static constexpr uint32_t kLookSeldom = 64;

  void decide() noexcept {
    const uint64_t mine = costs_[second_ ? 1 : 0];
    uint64_t& other = costs_[second_ ? 0 : 1];
    if (looking_) {
      if (!clearly_less(mine, other)) return stop_looking();
      looking_ = false;
      look_after_ = kLookAgain;
      return;
    }
    if (other != 0 && !clearly_less(other, mine) && ++judgements_ < look_after_) return;
    looking_ = true;
    other = 0;  // it is judged by what it costs now
    change();
  }
  // The way that was looked at is slower.
  void stop_looking() noexcept {
    looking_ = false;
    look_after_ = std::min(2 * look_after_, kLookSeldom);
    change();
  }
  // Whether this sample and the one before it were each more than half as much again as one of the kept way.
  [[nodiscard]] bool gives_up(uint64_t cost) noexcept {
    const uint64_t kept = costs_[second_ ? 0 : 1];
    const bool far = looking_ && cost * 2 * kTrial > 3 * kept;
    return std::exchange(was_far_, far) && far;
  }
  [[nodiscard]] static bool clearly_less(uint64_t one, uint64_t than) noexcept {
    return one < than - than / 10;
  }
  void change() noexcept {
    second_ = !second_;
    samples_ = kHasty && second_ && looking_ ? kSettling : 0;
    judgements_ = tried_ = 0;
    spent_ = 0;
    best_ = UINT64_MAX;
    was_far_ = false;
  }

  bool second_ = true;
  bool looking_ = false;  // at the way that was the slower one
  bool was_far_ = false;  // the last sample, from the kept way's
  uint32_t look_after_ = kLookAgain;
  uint32_t samples_ = 0;                // since the last change, then within the trial
  uint32_t judgements_ = 0;             // since the last change
  uint64_t spent_ = 0;                  // in this trial
  uint64_t best_ = UINT64_MAX;          // of the trials that the next judgement is made of
  uint32_t tried_ = 0;                  // so many
  std::array<uint64_t, 2> costs_ = {};  // of a trial; 0: not tried
};

}  // namespace towline

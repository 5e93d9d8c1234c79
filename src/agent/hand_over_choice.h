// Whether a staged transfer's storage leg is better copied by a thread of its backend's or by the worker that
// moves the other leg too: learnt from how long chunks take either way, since it depends on how many
// processors there are, who else is using them (the peer's process, often), and what the other leg costs.
//
// Begins by handing over, tries the other way, keeps the quicker one and looks at the other again now and
// then. Times are of chunks that end one after the other within a post; transfers shorter than a trial learn
// over several posts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace towline {

class HandOverChoice {
 public:
  // What is begun now should be handed over.
  [[nodiscard]] bool hand_over() const noexcept { return handed_; }

  // A post begins: the time until now is nobody's.
  void begin(uint64_t now_ns) noexcept { last_ns_ = now_ns; }
  // A chunk has arrived.
  void arrived(uint64_t now_ns) noexcept {
    const uint64_t took_ns = now_ns - last_ns_;
    last_ns_ = now_ns;
    // What was begun the other way must first be through.
    if (++chunks_ <= kSettling) return;
    spent_ns_ += took_ns;
    if (chunks_ < kSettling + kTrial) return;
    chunks_ = kSettling;
    uint64_t& mine = cost_ns_[handed_ ? 1 : 0];
    mine = mine == 0 ? spent_ns_ + 1 : (mine + spent_ns_ + 1) / 2;
    spent_ns_ = 0;
    decide();
  }

 private:
  static constexpr uint32_t kSettling = 4;
  static constexpr uint32_t kTrial = 16;
  static constexpr uint32_t kLookAgain = 16;  // trials of the quicker way, at first
  static constexpr uint32_t kLookSeldom = 64;

  void decide() noexcept {
    const uint64_t mine = cost_ns_[handed_ ? 1 : 0];
    uint64_t& other = cost_ns_[handed_ ? 0 : 1];
    if (looking_) {
      looking_ = false;
      if (clearly_less(mine, other)) {
        look_after_ = kLookAgain;
      } else {
        look_after_ = std::min(2 * look_after_, kLookSeldom);
        change();
      }
      return;
    }
    if (other != 0 && !clearly_less(other, mine) && ++trials_ < look_after_) return;
    looking_ = true;
    other = 0;  // it is judged by what it costs now
    change();
  }
  [[nodiscard]] static bool clearly_less(uint64_t one, uint64_t than) noexcept {
    return one < than - than / 10;
  }
  void change() noexcept {
    handed_ = !handed_;
    chunks_ = trials_ = 0;
  }

  bool handed_ = true;
  bool looking_ = false;  // at the way that was the slower one
  uint32_t look_after_ = kLookAgain;
  uint32_t chunks_ = 0;  // since the last change, then within the trial
  uint32_t trials_ = 0;  // since the last change
  uint64_t spent_ns_ = 0;
  uint64_t last_ns_ = 0;
  std::array<uint64_t, 2> cost_ns_ = {};  // of a trial: by the worker, handed over; 0: not tried
};

}  // namespace towline

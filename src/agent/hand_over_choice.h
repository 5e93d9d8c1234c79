// Whether a staged transfer's storage leg is better copied by a thread of its backend's or by the worker that
// moves the other leg too: learnt from how long chunks take either way, since it depends on how many
// processors there are, who else is using them (the peer's process, often), and what the other leg costs.
//
// Begins by handing over. Times are of chunks that end one after the other within a post; transfers shorter
// than a trial learn over several posts.
#pragma once

#include <cstdint>

#include "base/quicker_way.h"

namespace towline {

class HandOverChoice {
 public:
  // What is begun now should be handed over.
  [[nodiscard]] bool hand_over() const noexcept { return way_.second(); }

  // A post begins: the time until now is nobody's.
  void begin(uint64_t now_ns) noexcept { last_ns_ = now_ns; }
  // A chunk has arrived.
  void arrived(uint64_t now_ns) noexcept {
    way_.took(now_ns - last_ns_);
    last_ns_ = now_ns;
  }

 private:
  // What was begun the other way must first be through; and the first chunks that are handed over take 0.3 to
  // 2 ms each where later ones take 0.13 (1 MiB from mapped memory to a cached file, two virtual cores).
  QuickerWay<4, 16, 4> way_;
  uint64_t last_ns_ = 0;
};

}  // namespace towline

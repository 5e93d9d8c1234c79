// Which tokens of a pool are held. A token that is given back twice, or was never given out, changes nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace towline::tcpx {

class HeldTokens {
 public:
  explicit HeldTokens(uint32_t count) : words_((count + 63) / 64), count_(count) {}

  void hold(uint32_t token) noexcept { words_[token / 64] |= bit(token); }
  // False: it was not held.
  [[nodiscard]] bool release(uint32_t token) noexcept {
    if (token >= count_ || (words_[token / 64] & bit(token)) == 0) {
      ++bad_;
      return false;
    }
    words_[token / 64] &= ~bit(token);
    return true;
  }
  [[nodiscard]] uint64_t bad() const noexcept { return bad_; }

 private:
  static uint64_t bit(uint32_t token) noexcept { return uint64_t{1} << (token % 64); }

  std::vector<uint64_t> words_;
  uint32_t count_;
  uint64_t bad_ = 0;
};

}  // namespace towline::tcpx

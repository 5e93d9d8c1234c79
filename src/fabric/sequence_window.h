// Which sequence numbers have been seen. Senders give none that lies kSpan or more beyond the base that the
// receiver has told them, and leave none out. So anything before the window has been seen.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace towline::fabric {

class SequenceWindow {
 public:
  static constexpr uint64_t kSpan = 1024;
  using Bits = std::array<uint64_t, kSpan / 64>;

  // The lowest number not seen. Numbers start at 1.
  uint64_t base() const noexcept { return base_; }
  const Bits& bits() const noexcept { return bits_; }  // bit n % kSpan: base() <= n < base() + kSpan

  bool seen(uint64_t number) const noexcept {
    return number < base_ || (number - base_ < kSpan && (word(number) >> (number % 64) & 1) != 0);
  }

  // False when it was seen before, or lies beyond the window, which no honest sender does.
  bool insert(uint64_t number) noexcept {
    if (number < base_ || number - base_ >= kSpan || seen(number)) return false;
    word(number) |= uint64_t{1} << (number % 64);
    while ((word(base_) >> (base_ % 64) & 1) != 0) {
      word(base_) &= ~(uint64_t{1} << (base_ % 64));
      ++base_;
    }
    return true;
  }

  bool beyond(uint64_t number) const noexcept { return number >= base_ && number - base_ >= kSpan; }

  // The number nearest to the window whose lowest `bits` are these.
  uint64_t widen(uint64_t low, uint32_t bits) const noexcept {
    if (bits >= 64) return low;
    const uint64_t period = uint64_t{1} << bits;
    const uint64_t start = base_ > period / 2 ? base_ - period / 2 : 0;
    return start + ((low - start) & (period - 1));
  }

  static SequenceWindow from(uint64_t base, const Bits& bits) noexcept {
    SequenceWindow window;
    window.base_ = base;
    window.bits_ = bits;
    return window;
  }

 private:
  uint64_t& word(uint64_t number) noexcept { return bits_[number % kSpan / 64]; }
  uint64_t word(uint64_t number) const noexcept { return bits_[number % kSpan / 64]; }

  uint64_t base_ = 1;
  Bits bits_{};
};

}  // namespace towline::fabric

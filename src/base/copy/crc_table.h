// Reflected CRCs of any width by tables, eight bytes at a time: what processors without the instructions do, and what
// the others' ways begin and end with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace towline {

template <class State, State kPolynomial>
class CrcTable {
 public:
  using Table = std::array<State, 256>;

  // The state after another bit 0.
  static constexpr State times_x(State state) noexcept {
    return (state & 1) != 0 ? (state >> 1) ^ kPolynomial : state >> 1;
  }
  // The state after `byte`.
  static constexpr State step(State state, uint8_t byte) noexcept {
    return (state >> 8) ^ kTables[0][(state ^ byte) & 0xff];
  }
  // The state after `data`, without inversions.
  static State advance(std::span<const uint8_t> data, State state) noexcept {
    const uint8_t* next = data.data();
    std::size_t left = data.size();
    for (; left >= 8; next += 8, left -= 8) {
      uint64_t word;
      std::memcpy(&word, next, sizeof word);
      word ^= state;
      state = 0;
      for (std::size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
    }
    for (; left > 0; ++next, --left) state = step(state, *next);
    return state;
  }

 private:
  // [k][b]: the state after byte b and k zero bytes.
  static constexpr std::array<Table, 8> make() noexcept {
    std::array<Table, 8> tables{};
    for (std::size_t byte = 0; byte < 256; ++byte) {
      auto state = static_cast<State>(byte);
      for (int bit = 0; bit < 8; ++bit) state = times_x(state);
      tables[0][byte] = state;
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t k = 1; k < 8; ++k)
        tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
    }
    return tables;
  }
  static constexpr std::array<Table, 8> kTables = make();
};

}  // namespace towline

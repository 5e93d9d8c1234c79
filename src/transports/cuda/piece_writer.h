// Writes a list for the copy kernel, piece after piece. By value and small, so that a loop keeps it in registers: a list
// of 2,048 pieces is made while the GPU waits for it (some 13 ns a piece: as much when it is stored past the caches).
#pragma once

#include <cstdint>

#include "gpu/copy_job.h"

namespace towline::cuda {

class PieceWriter {
 public:
  // `position`: how many bytes the pieces before `at` have.
  PieceWriter(Piece* at, uint64_t position) noexcept : at_(at), position_(position) {}

  // bytes > 0.
  void add(uint64_t to, uint64_t from, uint64_t bytes) noexcept {
    bits_ |= to | from | bytes;
    for (; bytes > kLongestPiece; bytes -= kLongestPiece) {
      put(to, from, kLongestPiece);
      to += kLongestPiece;
      from += kLongestPiece;
    }
    put(to, from, bytes);
  }

  [[nodiscard]] Piece* at() const noexcept { return at_; }
  [[nodiscard]] uint64_t position() const noexcept { return position_; }
  [[nodiscard]] uint64_t bits() const noexcept { return bits_; }  // of all addresses and lengths

 private:
  void put(uint64_t to, uint64_t from, uint64_t bytes) noexcept {
    *at_++ = {to, from, position_, bytes};
    position_ += bytes;
  }

  Piece* at_;
  uint64_t position_;
  uint64_t bits_ = 0;
};

}  // namespace towline::cuda

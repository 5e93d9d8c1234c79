// Writes a list for the copy kernel, piece after piece. By value and small, so that a loop keeps it in registers: a list
// of 2,048 pieces is made while the GPU waits for it (some 7 to 13 ns a piece). It is stored past the caches where the
// processor can: a kernel reads 64 KiB that lie in a core's own cache 2 us later.
#pragma once

#include <cstdint>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

  // After the last piece, by the thread that wrote them: a kernel that is launched from now on reads them.
  static void publish() noexcept {
#ifdef __SSE2__
    _mm_sfence();
#endif
  }

  [[nodiscard]] Piece* at() const noexcept { return at_; }
  [[nodiscard]] uint64_t position() const noexcept { return position_; }
  [[nodiscard]] uint64_t bits() const noexcept { return bits_; }  // of all addresses and lengths

 private:
  void put(uint64_t to, uint64_t from, uint64_t bytes) noexcept {
    store(*at_++, {to, from, position_, bytes});
    position_ += bytes;
  }

  static void store(Piece& to, const Piece& piece) noexcept {
#ifdef __SSE2__
    static_assert(sizeof(Piece) == 2 * sizeof(__m128i));
    const auto pair = [](uint64_t low, uint64_t high) {
      return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
    };
    auto* const words = reinterpret_cast<__m128i*>(&to);  // lists begin at multiples of 16
    _mm_stream_si128(words, pair(piece.to, piece.from));
    _mm_stream_si128(words + 1, pair(piece.position, piece.length));
#else
    to = piece;
#endif
  }

  Piece* at_;
  uint64_t position_;
  uint64_t bits_ = 0;
};

}  // namespace towline::cuda

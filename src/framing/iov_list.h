// Pieces of memory in order, consumed from the front: the rest of a frame to write, or the rest of its
// destination. Room for a few more pieces at either end lets one system call include neighbouring bytes.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "base/check.h"
#include "base/copy/copy.h"
#include "base/copy/crc32c.h"

namespace towline::framing {

class IovList {
 public:
  static constexpr std::size_t kFront = 2;
  static constexpr std::size_t kBack = 1;

  explicit IovList(std::size_t capacity)
      : capacity_(capacity), pieces_(std::make_unique<iovec[]>(kFront + capacity + kBack)) {}

  void clear() noexcept {
    begin_ = end_ = kFront;
    bytes_ = 0;
  }

  // Joined to the last piece where it continues it.
  void append(const void* data, std::size_t bytes) noexcept {
    bytes_ += bytes;
    if (end_ != begin_) {
      iovec& last = pieces_[end_ - 1];
      if (static_cast<const uint8_t*>(last.iov_base) + last.iov_len == data) {
        last.iov_len += bytes;
        return;
      }
    }
    TOWLINE_DCHECK(end_ < kFront + capacity_, "more than {} pieces", capacity_);
    pieces_[end_++] = {const_cast<void*>(data), bytes};
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool empty() const noexcept { return bytes_ == 0; }
  [[nodiscard]] std::span<const iovec> pieces() const noexcept { return {&pieces_[begin_], end_ - begin_}; }

  // Where the next append() begins; rewind() takes away what was appended since.
  struct Mark {
    std::size_t end;
    std::size_t last_bytes;  // of the last piece
    std::size_t bytes;
  };
  [[nodiscard]] Mark mark() const noexcept {
    return {end_, end_ == begin_ ? 0 : pieces_[end_ - 1].iov_len, bytes_};
  }
  void rewind(const Mark& mark) noexcept {
    end_ = mark.end;
    bytes_ = mark.bytes;
    if (end_ != begin_) pieces_[end_ - 1].iov_len = mark.last_bytes;
  }

  // The pieces with up to kFront others before them, for one call.
  [[nodiscard]] std::span<const iovec> with_front(std::span<const iovec> front) noexcept {
    iovec* const start = &pieces_[begin_] - front.size();
    std::copy(front.begin(), front.end(), start);
    return {start, front.size() + (end_ - begin_)};
  }

  // As many of the first pieces as fit into `out`, cut to `bytes` in all; returns how many those are.
  std::size_t head(std::size_t bytes, std::span<iovec> out) const noexcept {
    std::size_t count = 0;
    for (std::size_t i = begin_; i < end_ && bytes != 0 && count < out.size(); ++i) {
      out[count] = {pieces_[i].iov_base, std::min(bytes, pieces_[i].iov_len)};
      bytes -= out[count++].iov_len;
    }
    return count;
  }

  // The pieces with one more behind them, for one call.
  [[nodiscard]] std::span<const iovec> with_back(iovec back) noexcept {
    pieces_[end_] = back;
    return {&pieces_[begin_], end_ - begin_ + 1};
  }

  // Removes the first `bytes`; calls `visit(data, bytes)` for them in order.
  template <class Visit>
  void advance(std::size_t bytes, Visit&& visit) noexcept {
    TOWLINE_DCHECK(bytes <= bytes_, "{} bytes of {}", bytes, bytes_);
    bytes_ -= bytes;
    while (bytes != 0) {
      iovec& piece = pieces_[begin_];
      const std::size_t here = std::min(bytes, piece.iov_len);
      visit(static_cast<uint8_t*>(piece.iov_base), here);
      piece.iov_base = static_cast<uint8_t*>(piece.iov_base) + here;
      piece.iov_len -= here;
      bytes -= here;
      if (piece.iov_len == 0) ++begin_;
    }
    if (bytes_ == 0) begin_ = end_ = kFront;
  }
  void advance(std::size_t bytes) noexcept {
    advance(bytes, [](uint8_t*, std::size_t) {});
  }

  // Copies `data` to the front pieces; the caller advances.
  void copy_in(std::span<const uint8_t> data) const noexcept {
    for (std::size_t i = begin_; !data.empty(); ++i) {
      const std::size_t here = std::min(data.size(), pieces_[i].iov_len);
      copy_bytes(pieces_[i].iov_base, data.data(), here);
      data = data.subspan(here);
    }
  }

 private:
  std::size_t capacity_;
  std::unique_ptr<iovec[]> pieces_;
  std::size_t begin_ = kFront;
  std::size_t end_ = kFront;
  std::size_t bytes_ = 0;
};

[[nodiscard]] inline uint32_t checksum_of(std::span<const iovec> pieces, uint32_t previous = 0) noexcept {
  for (const iovec& piece : pieces)
    previous = crc32c({static_cast<const uint8_t*>(piece.iov_base), piece.iov_len}, previous);
  return previous;
}

}  // namespace towline::framing

// Frames over a stream, without waiting: 32 bits of length, then the bytes.
//
// Its reader asks next() after each fill() until there is no whole frame. Both buffers are bounded by what their users
// ask for: fill() adds at most 16 KiB, and append()'s caller looks at unsent() first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/os/stream.h"

namespace towline::fabric {

class FramedStream {
 public:
  explicit FramedStream(Stream stream) noexcept : stream_(std::move(stream)) {}

  [[nodiscard]] Stream& stream() noexcept { return stream_; }

  // Queues a frame. False: there is no memory for it, and nothing was queued.
  [[nodiscard]] bool append(std::span<const uint8_t> frame) noexcept;
  // Sends what the stream takes.
  [[nodiscard]] StreamResult flush() noexcept;
  [[nodiscard]] std::size_t unsent() const noexcept { return out_.size() - sent_; }

  static constexpr std::size_t kMostRead = 16 << 10;
  // Reads once, at most that much. Failed with ENOMEM: there is no memory for it.
  [[nodiscard]] StreamResult fill() noexcept;
  enum class Next : uint8_t {
    kFrame,
    kNone,     // not a whole one yet
    kTooLong,  // longer than `most`: the stream can't be read any further
  };
  // The frame is valid until the next fill().
  [[nodiscard]] Next next(std::size_t most, std::span<const uint8_t>& frame) noexcept;

 private:
  Stream stream_;
  std::vector<uint8_t> in_;
  std::vector<uint8_t> out_;
  std::size_t taken_ = 0;  // of in_
  std::size_t sent_ = 0;   // of out_
};

}  // namespace towline::fabric

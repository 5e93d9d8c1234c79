// A checksum by which people compare two copies. It protects against accidents, not against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tool::cp {

// Four sums run in parallel over 32-byte strides, so that it is as fast as memory. Each word is mixed with
// all words before it. All calls but the last must pass a multiple of 32 bytes.
class Checksum {
 public:
  void add(const std::byte* data, uint64_t bytes) {
    bytes_ += bytes;
    for (; bytes >= 32; data += 32, bytes -= 32) {
      for (size_t lane = 0; lane < 4; ++lane) {
        uint64_t word = 0;
        std::memcpy(&word, data + 8 * lane, 8);
        lanes_[lane] = mix(lanes_[lane], word);
      }
    }
    for (; bytes > 0; ++data, --bytes) lanes_[0] = mix(lanes_[0], static_cast<uint64_t>(*data));
  }
  [[nodiscard]] uint64_t value() const {
    uint64_t sum = bytes_;
    for (const uint64_t lane : lanes_) sum = mix(sum, lane);
    return sum ^ (sum >> 32);
  }

 private:
  static uint64_t mix(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15ULL;
    return (sum << 29) | (sum >> 35);
  }

  uint64_t lanes_[4] = {1, 2, 3, 4};
  uint64_t bytes_ = 0;
};

}  // namespace tool::cp

// Source-compatible with NIXL's header of this name.
#pragma once

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "exception.h"

namespace nixl {

// A random identifier as RFC 9562 has it, version 4. Throws std::runtime_error if the kernel gives no random bytes.
class UUIDv4 {
 public:
  UUIDv4() {
    size_t filled = 0;
    while (filled < data_.size()) {
      const ssize_t got = ::getrandom(data_.data() + filled, data_.size() - filled, 0);
      if (got < 0 && errno != EINTR) throwRuntimeError("getrandom() failed: errno ", errno);
      if (got > 0) filled += static_cast<size_t>(got);
    }
    data_[6] = static_cast<uint8_t>((data_[6] & 0x0f) | 0x40);  // version 4
    data_[8] = static_cast<uint8_t>((data_[8] & 0x3f) | 0x80);  // the RFC's variant
  }

  [[nodiscard]] const std::array<uint8_t, 16>& get_data() const noexcept { return data_; }

  // 8-4-4-4-12 lower-case hexadecimal digits.
  [[nodiscard]] std::string to_string() const {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(36);
    for (size_t i = 0; i < data_.size(); ++i) {
      if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
      text += kDigits[data_[i] >> 4];
      text += kDigits[data_[i] & 0x0f];
    }
    return text;
  }

 private:
  std::array<uint8_t, 16> data_{};
};

}  // namespace nixl

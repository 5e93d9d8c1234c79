// Text made without memory, for code that must end in an error and may not throw: what does not fit is cut.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

namespace towline {

class ShortText {
 public:
  template <class... Args>
  explicit ShortText(fmt::format_string<Args...> format, Args&&... args) noexcept {
    try {
      *fmt::format_to_n(text_, kMostBytes, format, std::forward<Args>(args)...).out = '\0';
    } catch (...) {  // a formatter of an argument failed
      text_[0] = '\0';
    }
  }
  // To functions that take a text as C does.
  operator const char*() const noexcept { return text_; }  // NOLINT(google-explicit-constructor)

 private:
  static constexpr std::size_t kMostBytes = 511;

  char text_[kMostBytes + 1];
};

}  // namespace towline

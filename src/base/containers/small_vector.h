// A list whose first few items use no heap memory.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace towline {

template <class T, size_t kFew>
class SmallVector {
 public:
  SmallVector() = default;
  // Those of [begin, end), in their order.
  template <class Iterator>
  SmallVector(Iterator begin, Iterator end) {
    for (; begin != end; ++begin) push_back(*begin);
  }

  void push_back(T item) {
    if (more_.empty() && few_count_ < kFew) {
      few_[few_count_++] = std::move(item);
      return;
    }
    if (more_.empty()) {
      more_.reserve(2 * kFew);
      for (size_t i = 0; i < few_count_; ++i) more_.push_back(std::move(few_[i]));
    }
    more_.push_back(std::move(item));
  }
  void clear() noexcept {
    few_ = {};
    few_count_ = 0;
    more_ = {};
  }
  void shrink_to_fit() { more_.shrink_to_fit(); }

  [[nodiscard]] T* data() noexcept { return more_.empty() ? few_.data() : more_.data(); }
  [[nodiscard]] const T* data() const noexcept { return more_.empty() ? few_.data() : more_.data(); }
  [[nodiscard]] size_t size() const noexcept { return more_.empty() ? few_count_ : more_.size(); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] T& operator[](size_t i) noexcept { return data()[i]; }
  [[nodiscard]] const T& operator[](size_t i) const noexcept { return data()[i]; }
  [[nodiscard]] T& front() noexcept { return *data(); }
  [[nodiscard]] T& back() noexcept { return data()[size() - 1]; }
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + size(); }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] const T* end() const noexcept { return data() + size(); }

 private:
  std::array<T, kFew> few_{};
  size_t few_count_ = 0;
  std::vector<T> more_;  // all of them, once there are more
};

}  // namespace towline

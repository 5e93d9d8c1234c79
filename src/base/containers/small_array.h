// An array with a size that is fixed at creation, which uses no heap memory while it is small.
#pragma once

#include <cstddef>
#include <memory>

namespace towline {

template <class T, size_t kFew>
class SmallArray {
 public:
  SmallArray() = default;
  explicit SmallArray(size_t most) { reserve(most); }
  SmallArray(const SmallArray&) = delete;
  SmallArray& operator=(const SmallArray&) = delete;

  // Makes room for `count` elements; drops the old ones.
  void reserve(size_t most) {
    many_ = most > kFew ? std::make_unique_for_overwrite<T[]>(most) : nullptr;
    count_ = 0;
  }
  // The caller must not exceed the room.
  void add(T item) noexcept { data()[count_++] = item; }
  [[nodiscard]] T* data() noexcept { return many_ != nullptr ? many_.get() : few_; }
  [[nodiscard]] const T* data() const noexcept { return many_ != nullptr ? many_.get() : few_; }
  [[nodiscard]] const T& operator[](size_t i) const noexcept { return data()[i]; }
  [[nodiscard]] size_t size() const noexcept { return count_; }

 private:
  size_t count_ = 0;
  std::unique_ptr<T[]> many_;
  T few_[kFew];
};

}  // namespace towline

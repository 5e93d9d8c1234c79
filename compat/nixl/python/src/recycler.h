// Reuses the memory of large arrays: touching fresh pages takes longer than copying rows.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace towline::nixl::python {

// A buffer with room for `capacity()` values, which are not initialised.
template <class T>
class Room {
 public:
  Room() = default;
  explicit Room(size_t count) : data_(std::make_unique_for_overwrite<T[]>(count)), capacity_(count) {}
  [[nodiscard]] T* data() const noexcept { return data_.get(); }
  [[nodiscard]] size_t capacity() const noexcept { return data_ != nullptr ? capacity_ : 0; }
  void clear() noexcept {}

 private:
  std::unique_ptr<T[]> data_;
  size_t capacity_ = 0;
};

// Recycles Rooms or vectors.
template <class Array>
class Recycler {
 public:
  // Never destroyed: lists may be destroyed while the interpreter ends.
  static Recycler& only() {
    static Recycler* const recycler = new Recycler;
    return *recycler;
  }
  // Returns an empty array, with room for `count` if one is kept, else without room.
  Array take(size_t count) {
    if (count < kFewest / 2) return {};  // no kept array is that small
    const std::lock_guard lock(mutex_);
    for (size_t i = kept_.size(); i-- > 0;) {
      if (kept_[i].capacity() < count || kept_[i].capacity() / 2 > count) continue;
      Array array = std::move(kept_[i]);
      kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(i));
      return array;
    }
    return {};
  }
  void keep(Array array) noexcept {
    if (array.capacity() < kFewest || array.capacity() > kMost) return;
    array.clear();
    const std::lock_guard lock(mutex_);
    if (kept_.size() == kArrays) kept_.erase(kept_.begin());
    kept_.push_back(std::move(array));
  }

 private:
  static constexpr size_t kArrays = 4;
  static constexpr size_t kFewest = 2048;     // descriptors: the heap keeps smaller blocks anyway
  static constexpr size_t kMost = 128 << 10;  // of up to 3 MiB

  Recycler() { kept_.reserve(kArrays); }  // keeping allocates nothing

  std::mutex mutex_;
  std::vector<Array> kept_;
};

}  // namespace towline::nixl::python

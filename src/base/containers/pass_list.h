// Objects of one thread, gone over in passes. A pass may release any of them, the one it is at too: what was
// released is deleted when the outermost pass ends. Outside of one it is deleted at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace towline {

template <class T>
class PassList {
 public:
  // Around everything that may release an object.
  class Pass {
   public:
    explicit Pass(PassList& list) noexcept : list_(list) { ++list_.depth_; }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
      if (list_.depth_ == 1) list_.bury();
      --list_.depth_;
    }

   private:
    PassList& list_;
  };

  PassList() = default;
  PassList(const PassList&) = delete;
  PassList& operator=(const PassList&) = delete;

  // Gone over until release(), which is for the caller to see to. A pass under way comes to it too.
  T* add(std::unique_ptr<T> object) {
    released_.reserve(objects_.size() + 1);  // release() has no way to fail
    objects_.push_back(object.get());
    return object.release();
  }
  void release(T* object) noexcept {
    const Pass pass(*this);
    std::replace(objects_.begin(), objects_.end(), object, static_cast<T*>(nullptr));
    released_.push_back(object);
  }

  [[nodiscard]] bool in_pass() const noexcept { return depth_ != 0; }
  // The sum of what `turn` answers for each.
  template <class Turn>
  uint32_t each(Turn turn) noexcept {
    uint32_t sum = 0;
    for (std::size_t i = 0; i < objects_.size(); ++i)
      if (objects_[i] != nullptr) sum += turn(*objects_[i]);
    return sum;
  }
  // Ends with the first for which it is true.
  template <class Test>
  bool any(Test test) noexcept {
    for (std::size_t i = 0; i < objects_.size(); ++i)
      if (objects_[i] != nullptr && test(*objects_[i])) return true;
    return false;
  }

 private:
  void bury() noexcept {
    if (released_.empty()) return;
    while (!released_.empty()) {  // a destructor may release another
      const std::unique_ptr<T> object(released_.back());
      released_.pop_back();
    }
    std::erase(objects_, nullptr);
  }

  std::vector<T*> objects_;  // null: released
  std::vector<T*> released_;
  uint32_t depth_ = 0;
};

}  // namespace towline

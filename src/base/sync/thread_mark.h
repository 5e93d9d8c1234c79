// What a thread is inside of. Marks nest, and count while they live.
#pragma once

namespace towline {

template <class Of>
class ThreadMark {
 public:
  explicit ThreadMark(const Of* of) noexcept : of_(of), outer_(innermost) { innermost = this; }
  ~ThreadMark() { innermost = outer_; }
  ThreadMark(const ThreadMark&) = delete;
  ThreadMark& operator=(const ThreadMark&) = delete;

  // Whether this thread has a mark of that one.
  static bool is_of(const Of* of) noexcept {
    for (const ThreadMark* mark = innermost; mark != nullptr; mark = mark->outer_)
      if (mark->of_ == of) return true;
    return false;
  }

 private:
  static inline thread_local const ThreadMark* innermost = nullptr;
  const Of* const of_;
  const ThreadMark* const outer_;
};

}  // namespace towline

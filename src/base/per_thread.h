// Objects that each thread has its own of, in 8 bytes of a module's thread-local storage each.
//
// A thread_local object of a class takes its whole size there, and a guard. All of libtowline.so's is static, because of
// InUse (sync/in_use.h), and the C library keeps about 1.6 KB for the static storage of all libraries that a process
// loads late: one that finds no room does not load. So a thread_local of this tree is a number or a pointer, and what is
// larger goes through here. tests/structure/check_thread_storage.py holds each library to a bound.
#pragma once

#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace towline {

// Calls `function(argument)` when this thread ends, and keeps the library in memory until then. Also in a thread that is
// ending, while its other such functions run; too late for that, it is never called. Allocates, and ends the process if
// the C library has no memory for it, as every thread_local object with a destructor does.
void at_thread_end(void (*function)(void*), void* argument) noexcept;

// The thread's object of a type of its user's own. It is made when it is first asked for and freed when the thread ends.
// Functions that run at the thread's end after that get a new one.
template <class T>
class PerThread {
 public:
  // Throws std::bad_alloc.
  static T& get() {
    if (object_ == nullptr) [[unlikely]]
      keep(new T);
    return *object_;
  }

  // Null while there is no memory for it.
  static T* find() noexcept {
    static_assert(std::is_nothrow_default_constructible_v<T>);
    if (object_ == nullptr) [[unlikely]]
      keep(new (std::nothrow) T);
    return object_;
  }

 private:
  [[gnu::cold, gnu::noinline]] static void keep(T* made) noexcept {
    if (made == nullptr) return;
    object_ = made;
    at_thread_end([](void*) { delete std::exchange(object_, nullptr); }, nullptr);
  }

  static inline thread_local constinit T* object_ = nullptr;
};

// A text that a call leaves for a later call of its thread, such as why it failed. Nothing here throws: a text for which
// memory is short reads "out of memory". Used as `thread_local constinit ThreadText text;`.
class ThreadText {
 public:
  void set(std::string_view text) noexcept;
  void keep(std::string&& text) noexcept;
  void clear() noexcept;
  // Leaves it empty.
  [[nodiscard]] std::string take() noexcept;
  [[nodiscard]] bool empty() const noexcept { return text_ == nullptr || text_->empty(); }
  [[nodiscard]] const char* c_str() const noexcept { return text_ == nullptr ? "" : text_->c_str(); }

 private:
  [[nodiscard]] bool made() noexcept;

  std::string* text_ = nullptr;  // its own, or the one that says that memory is short, which nobody changes
};
static_assert(sizeof(ThreadText) == sizeof(void*) && std::is_trivially_destructible_v<ThreadText>);

}  // namespace towline

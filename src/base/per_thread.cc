#include "base/per_thread.h"

#include <cxxabi.h>

#include <new>

// Of each library, from the compiler: it names the library to the C library.
extern "C" [[gnu::visibility("hidden")]] void* __dso_handle;

namespace towline {

void at_thread_end(void (*function)(void*), void* argument) noexcept {
  abi::__cxa_thread_atexit(function, argument, &__dso_handle);
}

namespace {

// Short enough to lie in the string itself.
std::string* out_of_memory() noexcept {
  alignas(std::string) static std::byte storage[sizeof(std::string)];
  static auto* const text = new (storage) std::string("out of memory");  // never destroyed
  return text;
}

}  // namespace

bool ThreadText::made() noexcept {
  if (text_ != nullptr && text_ != out_of_memory()) return true;
  text_ = new (std::nothrow) std::string;
  if (text_ == nullptr) {
    text_ = out_of_memory();
    return false;
  }
  at_thread_end(
      [](void* argument) {
        std::string*& text = static_cast<ThreadText*>(argument)->text_;
        if (text != out_of_memory()) delete text;
        text = nullptr;
      },
      this);
  return true;
}

void ThreadText::set(std::string_view text) noexcept {
  if (!made()) return;
  try {
    text_->assign(text);
  } catch (const std::bad_alloc&) {
    *text_ = *out_of_memory();
  }
}

void ThreadText::keep(std::string&& text) noexcept {
  if (made()) *text_ = std::move(text);
}

void ThreadText::clear() noexcept {
  if (text_ == nullptr) return;
  if (text_ == out_of_memory())
    text_ = nullptr;
  else
    text_->clear();
}

std::string ThreadText::take() noexcept {
  if (text_ == nullptr) return {};
  if (text_ != out_of_memory()) return std::exchange(*text_, {});
  return *std::exchange(text_, nullptr);
}

}  // namespace towline

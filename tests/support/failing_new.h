// The program's operator new, which fails when a test says so. For one source file of a program: it defines
// the operators, for the libraries of the program as well.
#pragma once

#include <cstdlib>
#include <new>
#include <utility>

namespace towline::support {

inline thread_local int allocations_left = -1;  // of this thread, until they fail; negative: none fails
inline thread_local int failures_left = -1;     // then so many fail; negative: all do

// From here on this thread's allocations fail: the first `after` succeed, then `times` fail (negative: all).
inline void fail_allocations(int after = 0, int times = -1) noexcept {
  allocations_left = after;
  failures_left = times;
}
// From here on none fails. True: the next one would have.
inline bool stop_failing() noexcept { return std::exchange(allocations_left, -1) == 0; }

}  // namespace towline::support

// Not inline: these replace the C++ library's.
void* operator new(std::size_t bytes) {
  using namespace towline::support;
  const bool fails = allocations_left == 0;
  if (fails && failures_left > 0 && --failures_left == 0) allocations_left = -1;
  if (allocations_left > 0) --allocations_left;
  void* const memory = fails ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// A sanitizer's own would give memory that must not come to this free.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

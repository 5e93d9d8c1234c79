// The program's operator new, which fails when a test says so. For one source file of a program: it defines
// the operators, for the libraries of the program as well.
#pragma once

#include <cstdlib>
#include <new>

#include "support/failing_allocations.h"

// Not inline: these replace the C++ library's.
void* operator new(std::size_t bytes) {
  void* const memory = towline::support::allocation_fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
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

// Asks for cache lines before they are needed.
#pragma once

namespace towline {

// Asks for the cache line to be ours to write, without waiting for it. Harmless for any address.
inline void prefetch_for_write(const void* at) noexcept {
#if defined(__x86_64__)
  // What the builtin becomes only where the compiler is told.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const unsigned char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

}  // namespace towline

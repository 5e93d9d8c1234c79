// Structs that grow. Every struct that crosses the plugin ABI by pointer begins with `size_t struct_size`: the
// bytes its sender knows. New members are only appended, so two releases agree about the shorter one.
//
// Each has a *frozen minimum*: its size in the first release, without the slots that were optional then. It
// never changes. The receiver of a struct takes it with towline_take(): a struct smaller than the minimum is
// refused, members that an older sender lacks are zero (an optional slot is null), and members that only a
// newer sender has are ignored.
#pragma once

#include <stddef.h>
#include <string.h>

// The size of `type` up to and including `member`.
#define TOWLINE_BYTES_THROUGH(type, member) (offsetof(type, member) + sizeof(((type*)0)->member))

// Copies the struct at `from`, which begins with its size, to `to`, of `to_bytes`. Its struct_size becomes that
// of the part which both sides know. 0: it has fewer than `minimum` bytes, and `to` is as it was.
static inline int towline_take(void* to, size_t to_bytes, size_t minimum, const void* from) {
  size_t bytes;
  memcpy(&bytes, from, sizeof bytes);
  if (bytes < minimum || bytes < sizeof bytes) return 0;
  if (bytes > to_bytes) bytes = to_bytes;
  memset(to, 0, to_bytes);
  memcpy(to, from, bytes);
  memcpy(to, &bytes, sizeof bytes);
  return 1;
}

#ifdef __cplusplus
namespace towline::plugin {

// An empty struct of the plugin ABI with its size filled in.
template <class T>
T sized() noexcept {
  T made{};
  made.struct_size = sizeof(T);
  return made;
}

}  // namespace towline::plugin
#endif

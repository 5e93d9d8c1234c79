// Copying one block of some cache lines, the whole of what a post of a single page does. The C library copies
// such blocks by one instruction (rep movsb) where the processor is said to be quick at it: that takes some
// 30 cycles to get going, during which nothing around it goes on. A plain loop over the widest registers
// overlaps with the code before and behind it, and was 2 to 4 ns quicker at 512 bytes to 8 KiB (of 26 ns at 4
// KiB).
#pragma once

#include <cstddef>

namespace towline {

using BlockCopy = void (*)(void* to, const void* from, std::size_t bytes) noexcept;

// The quickest way this processor has to copy `bytes` from `from` to `to`, for any call with just these;
// never null. Ranges that overlap are copied as if through a buffer.
[[nodiscard]] BlockCopy choose_block_copy(const void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace towline

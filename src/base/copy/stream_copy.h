// Copies of bytes that are not read here soon: with stores past the caches, if the processor has them.
#pragma once

#include <cstddef>

namespace towline {

// As memmove; less than 4 KiB, or what overlaps, by memmove itself. The bytes are visible to others like
// those of ordinary stores made at its return.
void stream_copy(void* to, const void* from, size_t bytes) noexcept;

// The same, four pages side by side from 32 KiB on: quicker or slower by half, as the memory is made.
void stream_copy_in_pages(void* to, const void* from, size_t bytes) noexcept;

}  // namespace towline

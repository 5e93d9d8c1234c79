// Ordinary copies, by the way that is the quickest one on this machine.
//
// libc's memcpy is not that everywhere: from 2 KiB on glibc uses `rep movsb`, which on AMD EPYC of family 25 takes 3 to 10
// times as long as vector loads and stores where source and target lie differently within their pages. So both are tried
// once in a process, for each class of sizes and at several alignments, and the quicker one is kept.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

namespace towline {

namespace copying {

// Below this libc never does badly, and a call by pointer would cost more than it gains.
inline constexpr size_t kChosenBytes = 2048;

void chosen(void* to, const void* from, size_t bytes) noexcept;

enum class Way { kLibc, kVectors };

// From now on this one for all sizes: for tests, and for programs that compare the two.
void use(Way way) noexcept;

}  // namespace copying

// As memmove, and of no bytes the addresses may be null.
inline void copy_bytes(void* to, const void* from, size_t bytes) noexcept {
  if (bytes >= copying::kChosenBytes)
    copying::chosen(to, from, bytes);
  else if (bytes != 0)
    std::memmove(to, from, bytes);
}

// Tries the ways now, in about a millisecond, rather than at the first copy. Once in a process.
void choose_copies() noexcept;

// Which way is used for which sizes, as "2 KiB: vectors, 32 KiB: libc, 512 KiB: libc".
std::string describe_copies();

}  // namespace towline

// Ordinary copies, by the way that is the quickest one on this machine.
//
// libc's memcpy is not that everywhere: from 2 KiB on glibc uses `rep movsb`, which on AMD EPYC of family 25 takes 3 to 16
// times as long as vector loads and stores where the target lies up to a line further in its page than the source. Elsewhere
// it may well be the better one: it need not read the lines that it overwrites, and where another processor has them, as
// with the stages of collectives, it takes three quarters of the time (measured on an Intel Xeon, from 16 KiB on). So both
// are tried once in a process, for each class of sizes and each place of the target, and the quicker one is kept.
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

// Where the target lies in its page: as the source in its own, up to a line behind that, or anywhere else.
enum class Place { kAlike, kBehind, kElsewhere };
inline constexpr size_t kPlaces = 3;
Place place_of(const void* to, const void* from) noexcept;

// From now on this one for all sizes: for tests, and for programs that compare the two.
void use(Way way) noexcept;
void use(Way way, Place place) noexcept;

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

// Which way is used for which sizes, as "2 KiB: vectors, 8 KiB: libc, 32 KiB: libc (behind: vectors), 512 KiB: libc". Places
// (in kPlaces' order alike, behind, elsewhere) are named where they differ from the first.
std::string describe_copies();

}  // namespace towline

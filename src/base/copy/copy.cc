#include "base/copy/copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>

#include "base/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace towline {

namespace copying {

namespace {

using Copy = void (*)(void*, const void*, size_t) noexcept;

void by_libc(void* to, const void* from, size_t bytes) noexcept { std::memcpy(to, from, bytes); }

#if defined(__x86_64__)

// At least kChosenBytes that do not overlap. Loads lie as they come, stores are aligned.
__attribute__((target("avx2"))) void by_vectors_avx2(void* to_address, const void* from_address,
                                                     size_t bytes) noexcept {
  constexpr size_t kVector = 32;
  constexpr size_t kStep = 4 * kVector;
  auto* to = static_cast<uint8_t*>(to_address);
  const auto* from = static_cast<const uint8_t*>(from_address);
  uint8_t* const last = to + bytes - kStep;  // the last step, whatever its alignment
  const uint8_t* const last_from = from + bytes - kStep;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const size_t head = kVector - reinterpret_cast<uintptr_t>(to) % kVector;
  to += head;
  from += head;
  for (; to < last; to += kStep, from += kStep) {
    const auto* const source = reinterpret_cast<const __m256i*>(from);
    auto* const target = reinterpret_cast<__m256i*>(to);
    const __m256i first = _mm256_loadu_si256(source);
    const __m256i second = _mm256_loadu_si256(source + 1);
    const __m256i third = _mm256_loadu_si256(source + 2);
    const __m256i fourth = _mm256_loadu_si256(source + 3);
    _mm256_store_si256(target, first);
    _mm256_store_si256(target + 1, second);
    _mm256_store_si256(target + 2, third);
    _mm256_store_si256(target + 3, fourth);
  }
  const auto* const source = reinterpret_cast<const __m256i*>(last_from);
  auto* const target = reinterpret_cast<__m256i*>(last);
  const __m256i first = _mm256_loadu_si256(source);
  const __m256i second = _mm256_loadu_si256(source + 1);
  const __m256i third = _mm256_loadu_si256(source + 2);
  const __m256i fourth = _mm256_loadu_si256(source + 3);
  _mm256_storeu_si256(target, first);
  _mm256_storeu_si256(target + 1, second);
  _mm256_storeu_si256(target + 2, third);
  _mm256_storeu_si256(target + 3, fourth);
}

Copy by_vectors() noexcept { return __builtin_cpu_supports("avx2") ? by_vectors_avx2 : by_libc; }

#else

Copy by_vectors() noexcept { return by_libc; }

#endif

struct SizeClass {
  size_t from_bytes;
  size_t tried_bytes;
  const char* name;
};

// By what still fits a first-level cache with its source, that cache, a second-level one, and neither.
constexpr std::array kClasses = {
    SizeClass{kChosenBytes, 4 << 10, "2 KiB"}, SizeClass{8 << 10, 16 << 10, "8 KiB"},
    SizeClass{32 << 10, 64 << 10, "32 KiB"}, SizeClass{512 << 10, 512 << 10, "512 KiB"}};

// Offsets of target and source within their pages that are tried for each place. A buffer of malloc that is filled from a page
// lies 16 bytes behind it.
struct Alignment {
  size_t to;
  size_t from;
};
constexpr std::array<std::array<Alignment, 2>, kPlaces> kAlignments = {
    {{{{0, 0}, {64, 64}}}, {{{16, 0}, {64, 0}}}, {{{0, 16}, {9, 2048}}}}};
constexpr const char* kPlaceNames[kPlaces] = {"alike", "behind", "elsewhere"};
constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;
constexpr int kBestOf = 3;

// Before the choice is made, and where it can't be: libc's.
struct Ways {
  std::array<std::atomic<Copy>, kPlaces> of_place = {by_libc, by_libc, by_libc};
};
std::array<Ways, kClasses.size()> ways;
std::atomic<bool> is_chosen{false};

// The best time of each alignment of the place, added up.
uint64_t cost_of(Copy way, size_t place, uint8_t* to, const uint8_t* from, size_t bytes) noexcept {
  uint64_t all = 0;
  for (const Alignment& alignment : kAlignments[place]) {
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < kBestOf; ++round) {
      const uint64_t begin_ns = monotonic_now_ns();
      way(to + alignment.to, from + alignment.from, bytes);
      best = std::min(best, monotonic_now_ns() - begin_ns);
    }
    all += best;
  }
  return all;
}

void choose() noexcept {
  const Copy vectors = by_vectors();
  if (vectors == by_libc) return;
  constexpr size_t kRoom = kClasses.back().tried_bytes + 2 * kPage;
  const std::unique_ptr<uint8_t[]> memory(new (std::nothrow) uint8_t[2 * kRoom]);
  if (memory == nullptr) return;
  std::memset(memory.get(), 1, 2 * kRoom);
  uint8_t* const to = memory.get() + (kPage - reinterpret_cast<uintptr_t>(memory.get()) % kPage);
  const uint8_t* const from = to + kRoom - kRoom % kPage - kPage;
  for (size_t i = 0; i < kClasses.size(); ++i) {
    const size_t bytes = kClasses[i].tried_bytes;
    for (size_t place = 0; place < kPlaces; ++place) {
      const uint64_t libc = cost_of(by_libc, place, to, from, bytes);
      const uint64_t mine = cost_of(vectors, place, to, from, bytes);
      if (mine < libc - libc / 10) ways[i].of_place[place].store(vectors, std::memory_order_relaxed);
    }
  }
}

void choose_once() noexcept {
  static std::once_flag once;
  try {
    std::call_once(once, [] {
      choose();
      is_chosen.store(true, std::memory_order_release);
    });
  } catch (const std::exception&) {  // the trial could not be made to run once only: keep the present choice
  }
}

Copy way_for(const void* to, const void* from, size_t bytes) noexcept {
  std::size_t i = 0;
  while (i + 1 < kClasses.size() && bytes >= kClasses[i + 1].from_bytes) ++i;
  return ways[i].of_place[static_cast<size_t>(place_of(to, from))].load(std::memory_order_relaxed);
}

}  // namespace

Place place_of(const void* to, const void* from) noexcept {
  const size_t apart = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  return apart == 0 ? Place::kAlike : apart <= kLine ? Place::kBehind : Place::kElsewhere;
}

void chosen(void* to, const void* from, size_t bytes) noexcept {
  if (!is_chosen.load(std::memory_order_relaxed)) [[unlikely]]
    choose_once();
  const auto* const source = static_cast<const uint8_t*>(from);
  auto* const target = static_cast<uint8_t*>(to);
  if (target < source + bytes && source < target + bytes) {
    std::memmove(to, from, bytes);
    return;
  }
  way_for(to, from, bytes)(to, from, bytes);
}

void use(Way way, Place place) noexcept {
  choose_once();
  for (Ways& one : ways)
    one.of_place[static_cast<size_t>(place)].store(way == Way::kLibc ? by_libc : by_vectors(),
                                                   std::memory_order_relaxed);
}

void use(Way way) noexcept {
  for (const Place place : {Place::kAlike, Place::kBehind, Place::kElsewhere}) use(way, place);
}

}  // namespace copying

void choose_copies() noexcept { copying::choose_once(); }

std::string describe_copies() {
  using copying::kClasses, copying::kPlaces, copying::ways;
  choose_copies();
  std::string text;
  for (std::size_t i = 0; i < kClasses.size(); ++i) {
    const auto name_of = [&](std::size_t place) {
      return ways[i].of_place[place].load(std::memory_order_relaxed) == copying::by_libc ? "libc" : "vectors";
    };
    text += fmt::format("{}{}: {}", i == 0 ? "" : ", ", kClasses[i].name, name_of(0));
    std::string others;
    for (std::size_t place = 1; place < kPlaces; ++place)
      if (std::string_view(name_of(place)) != name_of(0))
        others +=
            fmt::format("{}{}: {}", others.empty() ? "" : ", ", copying::kPlaceNames[place], name_of(place));
    if (!others.empty()) text += fmt::format(" ({})", others);
  }
  return text;
}

}  // namespace towline

// The contents of pages, chosen so that a misplaced, stale or torn page is detected.
//
// A page's bytes belong to granules: groups of heads that no slice cuts through. A granule of a page is a run
// of 8-byte words, token by token; word i holds seed + i * odd, where the seed is drawn from the block's
// hash, the epoch in which it was written, the rank that wrote it, layer and plane, the page's place in the
// block, and the granule. Every word differs from those of any other page, layer, head or epoch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "replay/model.h"

namespace tool::replay {

enum class Verify {
  kSampled,  // head, tail and a few seeded words of each granule of each page are written and checked
  kFull,     // every word
};

// The stamp of a block, the same for all its pages.
struct BlockStamp {
  uint64_t hash = 0;
  uint64_t epoch = 0;
  uint32_t writer = 0;  // prefill rank
};

// A wrong word.
struct Mismatch {
  uint64_t address = 0;
  uint64_t expected = 0;
  uint64_t found = 0;
};

class Stamper {
 public:
  Stamper(const PoolLayout& layout, uint32_t granule_heads, Verify verify)
      : layout_(layout), granule_heads_(granule_heads), verify_(verify) {}

  // Writes all heads of a page, in every layer and plane. `place`: position of the page in its block.
  void write(const BlockStamp& stamp, uint32_t place, uint32_t page) const;
  // Checks these heads of a page. True if all words are right; else `mismatch` describes the first wrong one.
  [[nodiscard]] bool check(const BlockStamp& stamp, uint32_t place, uint32_t page, HeadRange heads,
                           Mismatch& mismatch) const;
  // Words checked so far by check().
  [[nodiscard]] uint64_t words_checked() const { return words_checked_; }

 private:
  template <class Visit>
  bool visit_granule(uint64_t seed, uint64_t address, Visit visit) const;
  template <class Visit>
  bool visit_page(const BlockStamp& stamp, uint32_t place, uint32_t page, HeadRange heads, Visit visit) const;

  PoolLayout layout_;
  uint32_t granule_heads_;
  Verify verify_;
  mutable uint64_t words_checked_ = 0;
};

}  // namespace tool::replay

// What pages hold, so that a misplaced, stale or torn one cannot pass.
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

// What a block's pages are stamped with, the same for all its pages.
struct BlockStamp {
  uint64_t hash = 0;
  uint64_t epoch = 0;
  uint32_t writer = 0;  // prefill rank
};

// A word that was not what it should be.
struct Mismatch {
  uint64_t address = 0;
  uint64_t expected = 0;
  uint64_t found = 0;
};

class Stamper {
 public:
  Stamper(const PoolLayout& layout, uint32_t granule_heads, Verify verify)
      : layout_(layout), granule_heads_(granule_heads), verify_(verify) {}

  // Writes all heads of a page, in every layer and plane. `place`: of the page in its block.
  void write(const BlockStamp& stamp, uint32_t place, uint32_t page) const;
  // Checks these heads of a page. True when all is well; else `mismatch` says where not.
  [[nodiscard]] bool check(const BlockStamp& stamp, uint32_t place, uint32_t page, HeadRange heads,
                           Mismatch& mismatch) const;
  // Words looked at so far by check().
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

#include "replay/stamp.h"

#include "mix.h"

namespace tool::replay {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15;
constexpr uint32_t kSeededWords = 2;

}  // namespace

// Calls visit(words, count, first_value) for each run of words that lies together; stops where it returns
// false.
template <class Visit>
bool Stamper::visit_granule(uint64_t seed, uint64_t address, Visit visit) const {
  const uint64_t row_words = uint64_t{granule_heads_} * layout_.shape.head_bytes / sizeof(uint64_t);
  const uint64_t row_stride = layout_.token_bytes();
  const uint64_t words = row_words * layout_.shape.page_tokens;
  const auto run = [&](uint64_t word, uint64_t count) {
    auto* place = reinterpret_cast<uint64_t*>(address + word / row_words * row_stride) + word % row_words;
    return visit(place, count, seed + word * kStep);
  };
  if (verify_ == Verify::kFull) {
    for (uint64_t word = 0; word < words; word += row_words) {
      if (!run(word, row_words)) return false;
    }
    return true;
  }
  if (!run(0, 1) || !run(words - 1, 1)) return false;
  for (uint32_t at = 0; at < kSeededWords; ++at) {
    if (!run(mix(seed, at) % words, 1)) return false;
  }
  return true;
}

template <class Visit>
bool Stamper::visit_page(const BlockStamp& stamp, uint32_t place, uint32_t page, HeadRange heads,
                         Visit visit) const {
  const uint64_t block_seed = mix(stamp.hash, stamp.epoch, stamp.writer, place);
  for (uint32_t layer_plane = 0; layer_plane < layout_.shape.layer_planes(); ++layer_plane) {
    const uint64_t start = layout_.page_address(layer_plane, page);
    for (uint32_t head = heads.first; head < heads.first + heads.count; head += granule_heads_) {
      const uint64_t address = start + uint64_t{head - layout_.heads.first} * layout_.shape.head_bytes;
      if (!visit_granule(mix(block_seed, layer_plane, head), address, visit)) return false;
    }
  }
  return true;
}

void Stamper::write(const BlockStamp& stamp, uint32_t place, uint32_t page) const {
  visit_page(stamp, place, page, layout_.heads, [](uint64_t* words, uint64_t count, uint64_t value) {
    for (uint64_t at = 0; at < count; ++at) words[at] = value + at * kStep;
    return true;
  });
}

bool Stamper::check(const BlockStamp& stamp, uint32_t place, uint32_t page, HeadRange heads,
                    Mismatch& mismatch) const {
  return visit_page(stamp, place, page, heads, [&](const uint64_t* words, uint64_t count, uint64_t value) {
    words_checked_ += count;
    uint64_t differences = 0;
    for (uint64_t at = 0; at < count; ++at) differences |= words[at] ^ (value + at * kStep);
    if (differences == 0) return true;
    for (uint64_t at = 0; at < count; ++at) {
      if (words[at] == value + at * kStep) continue;
      mismatch = {reinterpret_cast<uint64_t>(words + at), value + at * kStep, words[at]};
      break;
    }
    return false;
  });
}

}  // namespace tool::replay

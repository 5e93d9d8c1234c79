#include "replay/pool.h"

#include <numeric>
#include <unordered_set>

namespace tool::replay {

BlockPool::BlockPool(uint32_t pages, uint32_t page_tokens, uint64_t seed)
    : pages_(pages), page_tokens_(page_tokens), free_(pages) {
  std::iota(free_.begin(), free_.end(), 0u);
  Random{seed}.shuffle(free_);
}

bool BlockPool::room_for(const std::vector<BlockKey>& keys) const {
  uint64_t needed = 0;
  uint64_t reused = 0;  // pages of unused blocks that these keys would take into use
  std::unordered_set<BlockKey, KeyHash> counted;
  for (const BlockKey& key : keys) {
    if (!counted.insert(key).second) continue;
    const auto found = blocks_.find(key);
    if (found == blocks_.end()) {
      needed += pages_of(key.tokens);
    } else if (found->second.holders == 0) {
      reused += found->second.pages.size();
    }
  }
  return needed <= free_.size() + unused_pages_ - reused;
}

void BlockPool::add_holder(Block& block) {
  if (block.holders++ == 0) {
    unused_.erase(block.unused_at);
    unused_pages_ -= block.pages.size();
  }
}

void BlockPool::evict_one() {
  Block* block = unused_.front();
  if (evicted_) evicted_(*block);
  unused_.pop_front();
  unused_pages_ -= block->pages.size();
  free_.insert(free_.end(), block->pages.begin(), block->pages.end());
  blocks_.erase(BlockKey{block->key});
  ++evictions_;
}

std::optional<std::vector<BlockPool::Held>> BlockPool::hold(const std::vector<BlockKey>& keys) {
  if (!room_for(keys)) return std::nullopt;
  std::vector<Held> held(keys.size());
  // Blocks that are here first, so that making room does not evict them.
  for (size_t index = 0; index < keys.size(); ++index) {
    const auto found = blocks_.find(keys[index]);
    if (found == blocks_.end()) continue;
    add_holder(found->second);
    held[index] = {&found->second, false};
  }
  for (size_t index = 0; index < keys.size(); ++index) {
    if (held[index].block != nullptr) continue;
    const auto [place, made] = blocks_.try_emplace(keys[index]);
    Block& block = place->second;
    held[index] = {&block, made};
    ++block.holders;
    if (!made) continue;
    block.key = keys[index];
    const uint32_t count = pages_of(block.key.tokens);
    while (free_.size() < count) evict_one();
    block.pages.assign(free_.end() - count, free_.end());
    free_.resize(free_.size() - count);
  }
  return held;
}

void BlockPool::release(Block& block) {
  if (--block.holders > 0) return;
  block.unused_at = unused_.insert(unused_.end(), &block);
  unused_pages_ += block.pages.size();
}

}  // namespace tool::replay

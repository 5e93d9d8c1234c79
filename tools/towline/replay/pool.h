// A rank's bounded pool of pages, and the prefix blocks that lie in it.
//
// A block is what one prefix hash stands for, up to 512 tokens. Requests in progress hold the blocks they
// need. Blocks that no request holds stay as a prefix cache until their pages are needed; the least recently
// used go first.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mix.h"

namespace tool::replay {

struct BlockKey {
  uint64_t hash = 0;
  uint32_t tokens = 0;  // a shorter block is a different block
  bool operator==(const BlockKey&) const = default;
};

struct Block {
  BlockKey key;
  std::vector<uint32_t> pages;
  std::vector<uint64_t> epochs;  // when it was written, one for each source; the owner of the pool sets them
  uint32_t holders = 0;
  std::list<Block*>::iterator unused_at;  // valid while no request holds it
};

class BlockPool {
 public:
  // Pages are handed out in an order drawn from `seed`, so that a request's pages lie scattered as in a used
  // cache.
  BlockPool(uint32_t pages, uint32_t page_tokens, uint64_t seed);

  [[nodiscard]] uint32_t pages() const { return pages_; }
  [[nodiscard]] uint32_t free_pages() const { return static_cast<uint32_t>(free_.size()); }
  [[nodiscard]] uint64_t evictions() const { return evictions_; }
  [[nodiscard]] uint32_t pages_of(uint32_t tokens) const {
    return (tokens + page_tokens_ - 1) / page_tokens_;
  }

  struct Held {
    Block* block = nullptr;
    bool fresh = false;  // its pages hold nothing of it yet
  };
  // Holds all of these blocks, in order, or none: returns nothing if they need more pages than are free or
  // unused. Held blocks keep their pages until released; a block requested twice is held twice.
  [[nodiscard]] std::optional<std::vector<Held>> hold(const std::vector<BlockKey>& keys);
  void release(Block& block);

  // Called for each block before it is evicted, while its pages still hold it.
  void on_eviction(std::function<void(const Block&)> told) { evicted_ = std::move(told); }

 private:
  struct KeyHash {
    size_t operator()(const BlockKey& key) const { return mix(key.hash, key.tokens); }
  };

  [[nodiscard]] bool room_for(const std::vector<BlockKey>& keys) const;
  void add_holder(Block& block);
  void evict_one();

  uint32_t pages_;
  uint32_t page_tokens_;
  uint64_t evictions_ = 0;
  std::function<void(const Block&)> evicted_;
  std::vector<uint32_t> free_;
  std::unordered_map<BlockKey, Block, KeyHash> blocks_;
  std::list<Block*> unused_;  // least recently used first
  uint64_t unused_pages_ = 0;
};

}  // namespace tool::replay

// Messages between prefill and decode ranks, sent in notices. They may arrive twice, and in any order
// between different requests: a rank that gets no answer sends its message again.
//
//   decode  -> prefill 0  hello    JSON: who I am
//   prefill -> decode     plan     JSON: the model, the side that posts, where all prefill ranks listen
//   decode  -> prefill    pool     where my pages are
//   prefill -> decode     ready    request N: its blocks, and the pages that hold them
//   decode  -> prefill    want     (by prefill) request N: the pages that its missing blocks shall go to
//   prefill -> decode     landed   (by prefill) with the data: a part of request N is there
//   decode  -> prefill    done     (by decode, with the data) a part of request N was taken; its pages may be
//                                  reused
//   prefill -> decode     goodbye  every request is done
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "replay/pool.h"

namespace tool::replay {

enum class MessageType : uint8_t { kHello = 1, kPlan, kPool, kReady, kWant, kLanded, kDone, kGoodbye };

// Messages that do not fit into a notice are sent in parts; `part` counts from 0 to `parts` - 1.
struct PartOf {
  uint32_t request = 0;
  uint32_t part = 0;
  uint32_t parts = 1;
};

struct PoolMessage {
  uint32_t decode_rank = 0;
  uint32_t pages = 0;
  uint64_t base = 0;
};

struct ReadyBlock {
  BlockKey key;
  uint64_t epoch = 0;
  std::vector<uint32_t> pages;
};
struct ReadyMessage {
  PartOf part;
  std::vector<ReadyBlock> blocks;  // the blocks of all parts, in order, are those of the request
};

struct WantedBlock {
  uint32_t index = 0;  // of the request's blocks
  std::vector<uint32_t> pages;
};
struct WantMessage {
  PartOf part;
  std::vector<WantedBlock> blocks;
};

[[nodiscard]] std::string encode_text(MessageType type, std::string_view json);  // hello, plan
[[nodiscard]] std::string encode(const PoolMessage& message);
[[nodiscard]] std::string encode_part(MessageType type, const PartOf& part);  // landed, done, goodbye
// As many messages as it takes.
[[nodiscard]] std::vector<std::string> encode_ready(uint32_t request, const std::vector<ReadyBlock>& blocks);
[[nodiscard]] std::vector<std::string> encode_want(uint32_t request, const std::vector<WantedBlock>& blocks);

// The decoders check every length; Failure at anything that is not a message of that type.
[[nodiscard]] MessageType message_type(std::string_view message);
[[nodiscard]] std::string decode_text(std::string_view message);
[[nodiscard]] PoolMessage decode_pool(std::string_view message);
[[nodiscard]] PartOf decode_part(std::string_view message);
[[nodiscard]] ReadyMessage decode_ready(std::string_view message);
[[nodiscard]] WantMessage decode_want(std::string_view message);

// Puts the parts of messages about one request together.
template <class Item>
class Assembly {
 public:
  // True when this part was the last that was missing.
  bool add(const PartOf& part, std::vector<Item> items) {
    if (parts_.empty()) parts_.resize(part.parts);
    if (part.parts != parts_.size() || complete()) return false;
    Part& place = parts_[part.part];
    if (place.here) return false;
    place = {true, std::move(items)};
    return ++here_ == parts_.size();
  }
  [[nodiscard]] bool complete() const { return !parts_.empty() && here_ == parts_.size(); }
  [[nodiscard]] std::vector<Item> take() {
    std::vector<Item> all;
    for (Part& part : parts_) {
      all.insert(all.end(), std::make_move_iterator(part.items.begin()),
                 std::make_move_iterator(part.items.end()));
    }
    return all;
  }

 private:
  struct Part {
    bool here = false;
    std::vector<Item> items;
  };
  std::vector<Part> parts_;
  size_t here_ = 0;
};

// For parts without items.
struct Nothing {};

}  // namespace tool::replay

// The layout of a model's KV cache, whole and on one rank of a tensor-parallel group.
//
// A token's cache is, for each layer, one or two planes (keys and values; multi-head latent attention keeps
// one compressed vector instead), each of kv_heads vectors. Tensor parallelism splits the heads; where there
// are more ranks than heads, heads are held by several ranks. A latent vector counts as one head, so every
// rank holds all of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <towline/towline.hpp>
#include <vector>

#include "buffer.h"

namespace tool::replay {

struct Model {
  std::string name;
  uint32_t layers;
  uint32_t planes;
  uint32_t heads;
  uint32_t head_elements;
};

[[nodiscard]] const std::vector<Model>& known_models();
// By name, in any case; throws Failure that lists the known ones.
[[nodiscard]] const Model& find_model(std::string_view name);
// 2 for "bf16" and so on; throws Failure.
[[nodiscard]] uint32_t dtype_bytes(std::string_view dtype);

// The part of a model's cache that is replayed: a number of layers, in pages of a number of tokens.
struct CacheShape {
  uint32_t layers = 0;
  uint32_t planes = 0;
  uint32_t heads = 0;
  uint32_t head_bytes = 0;
  uint32_t page_tokens = 0;

  [[nodiscard]] uint64_t bytes_per_token() const { return uint64_t{layers} * planes * heads * head_bytes; }
  // Layers and planes nest evenly, so they count as one dimension.
  [[nodiscard]] uint32_t layer_planes() const { return layers * planes; }
};

// Throws Failure if pages or layers do not fit the model. `layers` 0: all.
[[nodiscard]] CacheShape make_shape(const Model& model, uint32_t layers, std::string_view dtype,
                                    uint32_t page_tokens);

struct HeadRange {
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const HeadRange&) const = default;
};

// Throws Failure unless one of heads and ranks divides the other.
void check_tensor_parallel(const CacheShape& shape, uint32_t ranks, std::string_view side);
[[nodiscard]] HeadRange heads_of_rank(const CacheShape& shape, uint32_t ranks, uint32_t rank);

// Heads that a decode rank gets from one prefill rank.
struct Slice {
  uint32_t prefill_rank = 0;
  HeadRange heads;
  bool operator==(const Slice&) const = default;
};

// Everything a decode rank needs, each head once. If several prefill ranks hold the same heads, decode ranks
// are spread over them.
[[nodiscard]] std::vector<Slice> slices_of_rank(const CacheShape& shape, uint32_t prefill_ranks,
                                                uint32_t decode_ranks, uint32_t decode_rank);
// The largest group of heads that no slice cuts; each group is stamped as one.
[[nodiscard]] uint32_t granule_heads(const CacheShape& shape, uint32_t prefill_ranks, uint32_t decode_ranks);

// The layout of one rank's pages: [layer][plane][page][token][head], so that a page is contiguous.
struct PoolLayout {
  CacheShape shape;
  HeadRange heads;
  uint32_t pages = 0;
  uint64_t base = 0;  // address, in the process that owns it
  towline::Kind kind = towline::Kind::kDram;
  uint64_t device = 0;

  // The same memory at the address where it is filled and checked (buffer.h).
  [[nodiscard]] PoolLayout in(const Buffer& buffer) const;
  void place_in(const Buffer& buffer);

  [[nodiscard]] uint64_t token_bytes() const { return uint64_t{heads.count} * shape.head_bytes; }
  [[nodiscard]] uint64_t page_bytes() const { return token_bytes() * shape.page_tokens; }
  [[nodiscard]] uint64_t plane_bytes() const { return page_bytes() * pages; }
  [[nodiscard]] uint64_t bytes() const { return plane_bytes() * shape.layer_planes(); }
  // The bytes of one page in all layers and planes.
  [[nodiscard]] uint64_t bytes_per_page() const { return page_bytes() * shape.layer_planes(); }
  [[nodiscard]] uint64_t page_address(uint32_t layer_plane, uint32_t page) const {
    return base + layer_plane * plane_bytes() + page * page_bytes();
  }

  // The part of every page that `part` is: whole pages when it is all the rank's heads, else that part of
  // each token.
  [[nodiscard]] towline::Blocks blocks(HeadRange part) const;
  [[nodiscard]] uint32_t blocks_per_page(HeadRange part) const {
    return part.count == heads.count ? 1 : shape.page_tokens;
  }
  // Appends the indices, in blocks(part), of these pages in layer-planes [first, last).
  void append_picks(HeadRange part, uint32_t first, uint32_t last, const std::vector<uint32_t>& page_list,
                    std::vector<uint32_t>& picks) const;
};

}  // namespace tool::replay

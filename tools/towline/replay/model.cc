#include "replay/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "failure.h"
#include "replay/trace.h"

namespace tool::replay {

const std::vector<Model>& known_models() {
  static const std::vector<Model> kModels{
      {"llama-3.1-8b", 32, 2, 8, 128},
      {"llama-3.1-70b", 80, 2, 8, 128},
      {"qwen3-32b", 64, 2, 8, 128},
      {"deepseek-v3", 61, 1, 1, 512 + 64},  // the latent vector, and the part of the key with positions
  };
  return kModels;
}

const Model& find_model(std::string_view name) {
  std::string lower{name};
  std::ranges::transform(lower, lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  const auto& models = known_models();
  const auto found = std::ranges::find(models, lower, &Model::name);
  if (found != models.end()) return *found;
  std::vector<std::string_view> names;
  for (const Model& model : models) names.push_back(model.name);
  throw Failure{fmt::format("no model '{}': known are {}", name, fmt::join(names, ", "))};
}

uint32_t dtype_bytes(std::string_view dtype) {
  if (dtype == "bf16" || dtype == "fp16") return 2;
  if (dtype == "fp8" || dtype == "int8") return 1;
  if (dtype == "fp32") return 4;
  throw Failure{fmt::format("no dtype '{}': bf16, fp16, fp8, int8 or fp32", dtype)};
}

CacheShape make_shape(const Model& model, uint32_t layers, std::string_view dtype, uint32_t page_tokens) {
  if (layers > model.layers) {
    throw Failure{fmt::format("--layers {}: {} has only {}", layers, model.name, model.layers)};
  }
  if (page_tokens == 0 || kHashBlockTokens % page_tokens != 0) {
    throw Failure{fmt::format("--page-tokens {} does not divide {}, the tokens of a prefix block",
                              page_tokens, kHashBlockTokens)};
  }
  return {.layers = layers == 0 ? model.layers : layers,
          .planes = model.planes,
          .heads = model.heads,
          .head_bytes = model.head_elements * dtype_bytes(dtype),
          .page_tokens = page_tokens};
}

void check_tensor_parallel(const CacheShape& shape, uint32_t ranks, std::string_view side) {
  if (ranks == 0 || ranks > 64) throw Failure{fmt::format("--{}-tp {}: 1 to 64", side, ranks)};
  if (shape.heads % ranks != 0 && ranks % shape.heads != 0) {
    throw Failure{fmt::format("--{}-tp {} cannot share {} heads evenly", side, ranks, shape.heads)};
  }
}

HeadRange heads_of_rank(const CacheShape& shape, uint32_t ranks, uint32_t rank) {
  if (ranks <= shape.heads) {
    const uint32_t count = shape.heads / ranks;
    return {rank * count, count};
  }
  return {rank / (ranks / shape.heads), 1};
}

std::vector<Slice> slices_of_rank(const CacheShape& shape, uint32_t prefill_ranks, uint32_t decode_ranks,
                                  uint32_t decode_rank) {
  const HeadRange wanted = heads_of_rank(shape, decode_ranks, decode_rank);
  std::vector<Slice> slices;
  for (uint32_t head = wanted.first; head < wanted.first + wanted.count; ++head) {
    uint32_t rank = 0;
    if (prefill_ranks <= shape.heads) {
      rank = head / (shape.heads / prefill_ranks);
    } else {
      const uint32_t replicas = prefill_ranks / shape.heads;
      rank = head * replicas + decode_rank % replicas;
    }
    if (!slices.empty() && slices.back().prefill_rank == rank) {
      ++slices.back().heads.count;
    } else {
      slices.push_back({rank, {head, 1}});
    }
  }
  return slices;
}

uint32_t granule_heads(const CacheShape& shape, uint32_t prefill_ranks, uint32_t decode_ranks) {
  return std::min(heads_of_rank(shape, prefill_ranks, 0).count, heads_of_rank(shape, decode_ranks, 0).count);
}

PoolLayout PoolLayout::in(const Buffer& buffer) const {
  PoolLayout there = *this;
  there.base = reinterpret_cast<uint64_t>(buffer.data());
  return there;
}

void PoolLayout::place_in(const Buffer& buffer) {
  const towline::MemoryView view = buffer.view();
  base = buffer.address();
  kind = view.kind;
  device = view.device;
}

towline::Blocks PoolLayout::blocks(HeadRange part) const {
  const uint64_t start = base + uint64_t{part.first - heads.first} * shape.head_bytes;
  const auto planes = towline::Blocks::at(start, uint64_t{part.count} * shape.head_bytes, kind, device)
                          .repeat(shape.layer_planes(), plane_bytes())
                          .repeat(pages, page_bytes());
  if (part.count != heads.count) return planes.repeat(shape.page_tokens, token_bytes());
  auto whole_pages = planes;
  whole_pages.length = page_bytes();
  return whole_pages;
}

void PoolLayout::append_picks(HeadRange part, uint32_t first, uint32_t last,
                              const std::vector<uint32_t>& page_list, std::vector<uint32_t>& picks) const {
  const uint32_t per_page = blocks_per_page(part);
  picks.reserve(picks.size() + size_t{last - first} * page_list.size() * per_page);
  for (uint32_t layer_plane = first; layer_plane < last; ++layer_plane) {
    for (const uint32_t page : page_list) {
      const uint32_t index = (layer_plane * pages + page) * per_page;
      for (uint32_t block = 0; block < per_page; ++block) picks.push_back(index + block);
    }
  }
}

}  // namespace tool::replay

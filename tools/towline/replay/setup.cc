#include "replay/setup.h"

#include <fmt/format.h>

#include <algorithm>

#include "failure.h"
#include "replay/generator.h"
#include "replay/spill.h"
#include "storage_schemes.h"
#include "units.h"

namespace tool::replay {
namespace {

constexpr uint64_t kLeastMemoryBytes = 256ull << 20;

double as_double(uint64_t value) { return static_cast<double>(value); }

}  // namespace

CacheShape shape_of(const Setup& setup) {
  return make_shape(find_model(setup.model), setup.layers, setup.dtype, setup.page_tokens);
}

bool decode_pulls(const Setup& setup) {
  if (setup.by == "decode") return true;
  if (setup.by == "prefill") return false;
  throw Failure{fmt::format("--by {}: decode or prefill", setup.by)};
}

Verify verify_of(const Setup& setup) {
  if (setup.verify == "sampled") return Verify::kSampled;
  if (setup.verify == "full") return Verify::kFull;
  throw Failure{fmt::format("--check {}: sampled or full", setup.verify)};
}

void check_setup(const Setup& setup) {
  const CacheShape shape = shape_of(setup);
  check_tensor_parallel(shape, setup.prefill_tp, "prefill");
  check_tensor_parallel(shape, setup.decode_tp, "decode");
  (void)decode_pulls(setup);
  (void)verify_of(setup);
  (void)parse_buffer_kind(setup.memory_kind);
  if (!setup.spill.empty()) check_spill(setup.spill);
  if (setup.requests == 0) throw Failure{"--requests 0: nothing to replay"};
  if (setup.requests > UINT32_MAX / 2) throw Failure{fmt::format("--requests {}: too many", setup.requests)};
}

std::vector<Request> requests_of(const Setup& setup) {
  if (!setup.trace.empty()) return read_trace(setup.trace, setup.requests);
  return generate_trace(setup.requests, setup.seed);
}

towline::AgentOptions agent_options(const Setup& setup, const std::string& listen) {
  towline::AgentOptions options;
  options.workers = setup.threads;
  options.listen = listen;
  options.config = plugins_for({setup.spill});
  return options;
}

MoveOptions move_options(const Setup& setup) {
  return {.pulls = decode_pulls(setup),
          .backend = setup.backend,
          .workers = setup.threads,
          .timeout = std::chrono::seconds{setup.patience_s}};
}

uint64_t side_bytes_for(const CacheShape& shape, uint32_t ranks, uint64_t tokens) {
  // Every block but the last is whole, so rounding up to pages once is enough.
  const uint64_t pages = (tokens + shape.page_tokens - 1) / shape.page_tokens;
  const PoolLayout layout{.shape = shape, .heads = heads_of_rank(shape, ranks, 0), .pages = 1};
  return pages * layout.bytes_per_page() * ranks;
}

uint64_t default_memory_bytes(const CacheShape& shape, uint32_t ranks, uint32_t largest_tokens) {
  return std::max(kLeastMemoryBytes, side_bytes_for(shape, ranks, largest_tokens) * 3 / 2);
}

PoolLayout make_layout(const CacheShape& shape, uint32_t ranks, uint32_t rank, uint64_t memory_bytes,
                       uint32_t largest_tokens, const char* side) {
  PoolLayout layout{.shape = shape, .heads = heads_of_rank(shape, ranks, rank), .pages = 1};
  const uint64_t memory =
      memory_bytes != 0 ? memory_bytes : default_memory_bytes(shape, ranks, largest_tokens);
  const uint64_t needed = side_bytes_for(shape, ranks, largest_tokens);
  if (needed > memory) {
    throw Failure{
        fmt::format("the {} side's pool of {} is too small: its largest request has {} tokens and needs {}. "
                    "Give --pool {} or "
                    "more, fewer --layers, or fewer --requests",
                    side, format_size(as_double(memory)), format_count(largest_tokens),
                    format_size(as_double(needed)), needed)};
  }
  const uint64_t most = UINT32_MAX / (uint64_t{shape.layer_planes()} * shape.page_tokens);
  layout.pages = static_cast<uint32_t>(std::min(memory / ranks / layout.bytes_per_page(), most));
  return layout;
}

}  // namespace tool::replay

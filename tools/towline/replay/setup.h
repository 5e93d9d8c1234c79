// The options of a replay, on the command line and in messages between its processes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <towline/towline.hpp>
#include <vector>

#include "buffer.h"
#include "replay/model.h"
#include "replay/mover.h"
#include "replay/stamp.h"
#include "replay/trace.h"

namespace tool::replay {

struct Setup {
  std::string model = "llama-3.1-8b";
  uint32_t layers = 4;  // 0: all
  std::string dtype = "bf16";
  uint32_t page_tokens = 16;
  uint32_t prefill_tp = 1;
  uint32_t decode_tp = 1;
  std::string by = "decode";  // the side that posts
  std::string verify = "sampled";
  std::string trace;  // file; empty: generated
  uint64_t requests = 24;
  uint64_t seed = 1;
  double speed = 0;  // factor on the trace's own speed; 0: as fast as possible

  // Each side's own.
  uint64_t memory_bytes = 0;  // of the pool, over all ranks of a side; 0: by the largest request
  std::string memory_kind = "shared";
  std::string backend;  // empty: the router chooses
  std::string spill;    // place for evicted blocks of prefill ranks; empty: none
  uint32_t threads = 1;
  uint32_t in_flight = 2;
  uint64_t patience_s = 60;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Setup, model, layers, dtype, page_tokens, prefill_tp, decode_tp, by,
                                   verify, trace, requests, seed, speed, memory_bytes, memory_kind, backend,
                                   spill, threads, in_flight, patience_s)

// Throws Failure if the options contradict each other.
void check_setup(const Setup& setup);

[[nodiscard]] CacheShape shape_of(const Setup& setup);
[[nodiscard]] bool decode_pulls(const Setup& setup);
[[nodiscard]] Verify verify_of(const Setup& setup);
[[nodiscard]] std::vector<Request> requests_of(const Setup& setup);
[[nodiscard]] towline::AgentOptions agent_options(const Setup& setup, const std::string& listen);
[[nodiscard]] MoveOptions move_options(const Setup& setup);

// Pool bytes that all ranks of a side need together to hold this many tokens.
[[nodiscard]] uint64_t side_bytes_for(const CacheShape& shape, uint32_t ranks, uint64_t tokens);
// The default size of a side's pools: 1.5 times the largest request.
[[nodiscard]] uint64_t default_memory_bytes(const CacheShape& shape, uint32_t ranks, uint32_t largest_tokens);
// One rank's pool. Throws Failure with the needed size if the largest request would not fit.
[[nodiscard]] PoolLayout make_layout(const CacheShape& shape, uint32_t ranks, uint32_t rank,
                                     uint64_t memory_bytes, uint32_t largest_tokens, const char* side);

}  // namespace tool::replay

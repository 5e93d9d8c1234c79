// The active side of a bench: posts transfers and keeps the times.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/row.h"
#include "channel.h"

namespace tool::bench {

// Something that computes on the initiator's GPU while rows are measured.
struct BesideOptions {
  std::string what;    // "gemm", or empty: nothing
  uint32_t sms = 0;    // a green context of so many multiprocessors is its own; 0: it uses all
  uint32_t asked = 0;  // cuBLAS is asked to keep to so many; 0: to none
  std::string cublas;  // the library's file, if it is not found by itself
  int size = 8192;     // of its square matrices
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BesideOptions, what, sms, asked, cublas, size)

struct InitiatorOptions {
  uint32_t rank = 0;
  uint32_t initiators = 1;
  std::string pattern = "pairwise";
  std::vector<Row> rows;
  std::string listen;  // for targets to connect back
  std::string memory_kind = "shared";
  std::string target_memory_kind;  // empty: the same
  std::string backend;
  uint64_t iterations = 0;  // 0: as many as fit in `seconds`, at least 3
  double seconds = 0.5;
  uint64_t warmup = 2;
  bool check = true;
  bool sequential = false;  // blocks in order, not at random
  bool spin = false;        // poll instead of wait
  uint32_t workers = 0;     // threads of an agent that make progress; of the command 0: as many as post
  uint64_t span_bytes = 0;
  uint64_t seed = 1;
  BesideOptions beside;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InitiatorOptions, rank, initiators, pattern, rows, listen, memory_kind,
                                   target_memory_kind, backend, iterations, seconds, warmup, check,
                                   sequential, spin, span_bytes, seed, beside, workers)

// The body of an initiator process. `configuration`: InitiatorOptions. Then, in turn with the parent:
//   {"start": [target addresses]} -> {"ready"}, and for each row
//   {"prepare": row} -> {"prepared"}, {"go": row} -> {"measured": ..}, {"check": row} -> {"checked": ..}
void run_initiator(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::bench

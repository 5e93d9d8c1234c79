// One request, for a thread that may wait for its answer.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "http/client.h"

namespace towline::http {

struct WholeAnswer {
  long status = 0;  // 0: none came
  std::string body;
  std::string error;  // why none came
};

// Ends within request.timeout_ns, or soon after `stop` turns true. An answer of more than most_bytes is an error.
// Throws Error when it can't even begin.
WholeAnswer ask(const Options& options, Request request, size_t most_bytes, const std::atomic<bool>& stop);

}  // namespace towline::http

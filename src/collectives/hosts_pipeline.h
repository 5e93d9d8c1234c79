// The order of an operation's steps: chunk by chunk, one of which crosses while the GPU works on another.
#pragma once

#include <algorithm>

#include "collectives/hosts_steps.h"

namespace towline::collectives {

template <class Before, class HopOf, class After>
void HostsSteps::pipeline(uint64_t bytes, uint64_t chunk, Before&& before, HopOf&& hop, After&& after) {
  const auto chunks = static_cast<uint32_t>(std::max<uint64_t>(1, (bytes + chunk - 1) / chunk));
  Chunk last = {};
  bool posted = false;
  for (uint32_t i = 0; i <= chunks; ++i) {
    const uint64_t begin = i * chunk;
    Chunk now = {begin, 0, layout_->staging + (i & 1) * layout_->half, i};
    bool posts = false;
    if (i < chunks) {
      now.bytes = std::min(chunk, bytes - begin);
      before(now);
      posts = hop(now);
    }
    if (i > 0) {
      if (posted) steps_.emplace_back().kind = TOWLINE_STEP_AWAIT;
      after(last);
    }
    last = now;
    posted = posts;
  }
}

}  // namespace towline::collectives

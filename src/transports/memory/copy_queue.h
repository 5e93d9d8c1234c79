// The data path of one connection where bytes are copied from pointer to pointer: plans up to a limit inside
// submit, larger ones in slices.
#pragma once

#include <cstdint>

#include "base/containers/small_array.h"
#include "transports/direct/job_queue.h"
#include "transports/memory/ends.h"

namespace towline::memory {

class CopyQueue;

struct Prepared : direct::Prepared {
  CopyQueue* queue = nullptr;
  SmallArray<uint64_t, 2> deltas;  // one for each remote region
};

class CopyQueue final : private direct::Mover {
 public:
  CopyQueue(const plugin::Host& host, uint32_t worker, Ends& ends, uint32_t side,
            uint64_t inline_bytes) noexcept
      : ends_(ends), side_(side), inline_bytes_(inline_bytes), jobs_(host, worker, *this) {}

  [[nodiscard]] uint64_t inline_bytes() const noexcept { return inline_bytes_; }
  [[nodiscard]] direct::JobQueue& jobs() noexcept { return jobs_; }

  // The prepared plan's own plan is there, or is another.
  void aim(Prepared& prepared) const noexcept;
  // v1.h's submit. Any thread, as far as v1.h says so.
  [[nodiscard]] int32_t submit(Prepared& prepared, const towline_submit_args& args) noexcept;

 private:
  void begin(direct::Job& job) noexcept override;
  void step(direct::Job& job) noexcept override;

  Ends& ends_;
  const uint32_t side_;
  const uint64_t inline_bytes_;
  direct::JobQueue jobs_;
};

}  // namespace towline::memory

// The data path of a connection on which this side moves the bytes itself: prepared plans, and how their bytes
// are moved. A part up to the plan's inline limit is copied inside submit, on the calling thread; a larger one
// in slices.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/containers/small_array.h"
#include "base/containers/small_vector.h"
#include "plan/block_copy.h"
#include "towline/plugin/backend.hpp"
#include "towline/plugin/cursor.hpp"
#include "transports/direct/job_queue.h"
#include "transports/shm/large_copy.h"
#include "transports/shm/process_vm.h"

namespace towline::shm {

class DirectPath;

struct Prepared : direct::Prepared {
  // The whole plan is one mapped piece of so many bytes, copied where it is posted: what such a post needs
  // stands together. UINT64_MAX: not so.
  uint64_t quick_bytes = UINT64_MAX;
  BlockCopy quick_copy = nullptr;
  DirectPath* path = nullptr;
  uint64_t large_pieces = 0;  // all is mapped, and goes by large_copy.h in pieces of so many bytes
  bool process_vm = false;    // some region is reached by it
  bool one_piece =
      false;           // the whole plan is one segment: what follows says where, so that no cursor is needed
  uint64_t local = 0;  // when it is reached by process_vm
  uint64_t remote = 0;
  uint64_t inline_bytes = 0;
  SmallArray<RegionWay, 2> ways;                     // one for each remote region
  SmallArray<uint64_t, 2> deltas;                    // the same for DirectCopy, when all are mapped
  SmallVector<std::shared_ptr<const void>, 1> held;  // mappings that the plan reaches into
};

class DirectPath final : private direct::Mover {
 public:
  DirectPath(const plugin::Host& host, uint32_t worker) noexcept : jobs_(host, worker, *this) {}

  [[nodiscard]] direct::JobQueue& jobs() noexcept { return jobs_; }

  // Once the handshake is over. `socket` and `pidfd` (-1: none) tell whether the peer still lives.
  void open(pid_t pid, int socket, int pidfd) noexcept;

  // The prepared plan's own plan is there, or is another; its regions are known.
  static void aim(Prepared& prepared) noexcept;
  // v1.h's submit for a plan that is not framed. Any thread, as far as v1.h says so.
  [[nodiscard]] int32_t submit(Prepared& prepared, const towline_submit_args& args) noexcept;

  // As submit, for all of a plan with `quick_bytes` and no message. It is most of what a post of a page costs
  // beside the copy: few instructions, no stack frame.
  [[nodiscard]] int32_t submit_quick(const Prepared& prepared) noexcept {
    if (jobs_.down()) [[unlikely]]
      return static_cast<int32_t>(Status::kPeerLost);
    prepared.quick_copy(prepared.to, prepared.from, prepared.quick_bytes);
    return TOWLINE_OK;
  }

 private:
  void begin(direct::Job& job) noexcept override;
  void step(direct::Job& job) noexcept override;
  int32_t copy_inline(Prepared& prepared, const towline_submit_args& args) noexcept;
  CopyResult copy_with_process_vm(const Prepared& prepared, const towline_submit_args& args) noexcept;
  CopyResult copy_with_process_vm(plugin::Cursor& cursor, const Prepared& prepared,
                                  uint64_t max_bytes) noexcept;
  bool peer_alive() noexcept;

  direct::JobQueue jobs_;
  pid_t pid_ = 0;
  int socket_ = -1;
  int pidfd_ = -1;
  std::atomic<uint64_t> seen_alive_ns_{0};  // when the peer's process was last looked at, and found alive
  std::atomic<uint64_t> seen_alive_ticks_{0};
  LargeCopy large_copy_;
};

}  // namespace towline::shm

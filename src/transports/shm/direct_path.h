// The data path of a connection on which this side moves the bytes itself: prepared plans, and the queue of
// parts that are copied in slices.
//
// A part up to the plan's inline limit is copied inside submit, on the calling thread. A larger one waits in
// the queue, and each progress() copies one slice of the part at its head, then lets the next have a turn.
// Nothing of a part is copied after its completion: both happen on the worker, under its lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/containers/small_array.h"
#include "base/containers/small_vector.h"
#include "framing/connection.h"
#include "plan/block_copy.h"
#include "plan/direct_copy.h"
#include "towline/plugin/backend.hpp"
#include "towline/plugin/cursor.hpp"
#include "transports/shm/large_copy.h"
#include "transports/shm/process_vm.h"

namespace towline::shm {

class DirectPath;

// A plan prepared on a connection: either handed on to the framed engine, or copied from here.
struct Prepared : plugin::PreparedBase {
  // The whole plan is one mapped piece of so many bytes, copied where it is posted: what such a post needs
  // stands together. UINT64_MAX: not so.
  uint64_t quick_bytes = UINT64_MAX;
  BlockCopy quick_copy = nullptr;
  towline_prepared* framed = nullptr;  // not null: everything goes through it
  DirectPath* path = nullptr;
  uint8_t* to = nullptr;  // of one piece, when it is mapped
  const uint8_t* from = nullptr;
  uint32_t op = 0;
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

class DirectPath {
 public:
  explicit DirectPath(const plugin::Host& host, uint32_t worker) : host_(host), worker_(worker) {}
  DirectPath(const DirectPath&) = delete;
  DirectPath& operator=(const DirectPath&) = delete;

  // Once the handshake is over. `socket` and `pidfd` (-1: none) tell whether the peer still lives.
  void open(framing::Connection& framed, pid_t pid, int socket, int pidfd) noexcept;

  // v1.h's submit for a plan that is not framed. Any thread, as far as v1.h says so.
  [[nodiscard]] int32_t submit(Prepared& prepared, const towline_submit_args& args) noexcept;

  // As submit, for all of a plan with `quick_bytes` and no message. It is most of what a post of a page costs
  // beside the copy: few instructions, no stack frame.
  [[nodiscard]] int32_t submit_quick(const Prepared& prepared) noexcept {
    if (down_.load(std::memory_order_relaxed)) [[unlikely]]
      return static_cast<int32_t>(Status::kPeerLost);
    prepared.quick_copy(prepared.to, prepared.from, prepared.quick_bytes);
    return TOWLINE_OK;
  }

  // The worker, under its lock.
  bool cancel(uint64_t cookie) noexcept;  // false: not a part of ours
  uint32_t progress() noexcept;
  [[nodiscard]] bool has_copies() const noexcept;  // progress() would find something to copy or complete
  [[nodiscard]] size_t queued() const noexcept { return queued_; }
  // Nothing is copied any more; later submits answer kPeerLost. Parts in flight end with `status` in the
  // calls to host.complete that this makes.
  void close(Status status) noexcept;

 private:
  struct Job {
    Job* next = nullptr;
    Prepared* prepared = nullptr;
    uint64_t cookie = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t position = 0;  // of the plan: everything from begin to it is moved
    int error = 0;
    Status status = Status::kOk;
    bool ended = false;  // failed, cancelled or copied, and the message (if any) still to be sent when kOk
    std::optional<DirectCopy> copy;        // all mapped
    std::optional<plugin::Cursor> cursor;  // otherwise
    std::vector<uint8_t> message;
  };

  int32_t copy_inline(Prepared& prepared, const towline_submit_args& args) noexcept;
  int32_t enqueue(Prepared& prepared, const towline_submit_args& args, const CopyResult* copied) noexcept;
  CopyResult copy_with_process_vm(const Prepared& prepared, const towline_submit_args& args) noexcept;
  CopyResult copy_with_process_vm(plugin::Cursor& cursor, const Prepared& prepared,
                                  uint64_t max_bytes) noexcept;
  void copy_some(Job& job) noexcept;
  bool finish(Job& job) noexcept;
  void recycle(Job* job) noexcept;
  void complete(const Job& job) noexcept;
  bool peer_alive() noexcept;

  const plugin::Host host_;
  const uint32_t worker_;
  framing::Connection* framed_ = nullptr;
  pid_t pid_ = 0;
  int socket_ = -1;
  int pidfd_ = -1;
  std::atomic<bool> down_{false};
  std::atomic<uint64_t> seen_alive_ns_{0};  // when the peer's process was last looked at, and found alive
  std::atomic<uint64_t> seen_alive_ticks_{0};

  LargeCopy large_copy_;
  Job* head_ = nullptr;
  Job** tail_ = &head_;
  size_t queued_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;  // all that were ever needed at once
  Job* free_ = nullptr;
};

}  // namespace towline::shm

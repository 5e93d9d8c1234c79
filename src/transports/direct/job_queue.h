// The parts that a connection copies itself, on its worker, when they are too large for submit: each progress()
// copies one slice of the part at the head, then lets the next have a turn. Urgent parts go first, but for one
// turn in eight. Nothing of a part is copied after its completion: both happen on the worker, under its lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/sync/urgent_first.h"
#include "framing/connection.h"
#include "plan/direct_copy.h"
#include "towline/plugin/backend.hpp"
#include "towline/plugin/cursor.hpp"

namespace towline::direct {

// A plan prepared on a connection: either handed on to the framed engine, or copied from here. Transports add
// how they reach the peer's memory.
struct Prepared : plugin::PreparedBase {
  towline_prepared* framed = nullptr;  // not null: everything goes through it
  uint32_t op = 0;
  uint8_t* to = nullptr;  // of one piece, when pointers reach both ends
  const uint8_t* from = nullptr;

  // Tells where the bytes of a plan of one piece lie; both are pointers of this process.
  void set_piece(uint64_t local, uint64_t remote) noexcept {
    to = reinterpret_cast<uint8_t*>(op == TOWLINE_READ ? local : remote);
    from = reinterpret_cast<const uint8_t*>(op == TOWLINE_READ ? remote : local);
  }
};

// The progress of a part, and the reason why it goes no further.
struct Moved {
  uint64_t position = 0;  // of the plan: everything from the part's begin to it is moved
  Status status = Status::kOk;
  int error = 0;  // errno of a failure, as far as one is known
};

struct Job {
  Prepared* prepared = nullptr;
  uint64_t cookie = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  Moved moved;
  std::optional<DirectCopy> copy;  // a mover uses one of the two
  std::optional<plugin::Cursor> cursor;
  std::vector<uint8_t> message;
  bool urgent = false;
  bool ended = false;  // failed, cancelled or copied; the message (if any) still has to go when kOk
  Job* next = nullptr;
};

// The transport's half: how bytes are moved.
class Mover {
 public:
  // Sets the job's copy or cursor to all of the part.
  virtual void begin(Job& job) noexcept = 0;
  // Moves a slice, and sets job.moved.
  virtual void step(Job& job) noexcept = 0;

 protected:
  ~Mover() = default;
};

class JobQueue {
 public:
  JobQueue(const plugin::Host& host, uint32_t worker, Mover& mover) noexcept
      : host_(host), worker_(worker), mover_(mover) {}
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // Once the connection is up. Messages go through the engine, after their data.
  void open(framing::Connection& framed) noexcept { framed_ = &framed; }

  // ---- from submit; any thread, as far as v1.h says so
  // Nothing may be copied any more: submits answer kPeerLost.
  [[nodiscard]] bool down() const noexcept { return down_.load(std::memory_order_relaxed); }
  [[nodiscard]] int32_t submit(Prepared& prepared, const towline_submit_args& args) noexcept {
    return enqueue(prepared, args, nullptr);
  }
  // The rest of a part that submit has copied, or failed to copy: its message, or its failure with the range.
  [[nodiscard]] int32_t finish(Prepared& prepared, const towline_submit_args& args,
                               const Moved& moved) noexcept {
    if (moved.status == Status::kOk) {
      if (args.message_bytes == 0) return TOWLINE_OK;
      const int32_t sent = framed_->send(args.message, args.message_bytes);
      if (sent != TOWLINE_AGAIN) return sent;
    }
    return enqueue(prepared, args, &moved);
  }

  // ---- the worker, under its lock
  bool cancel(uint64_t cookie) noexcept;  // false: not a part of ours
  uint32_t progress() noexcept;
  [[nodiscard]] bool has_work() const noexcept;  // progress() would find something to copy or complete
  [[nodiscard]] size_t queued() const noexcept { return queued_; }
  // Nothing is copied any more. Parts in flight end with `status` in the calls to host.complete that this
  // makes.
  void close(Status status) noexcept;

 private:
  int32_t enqueue(Prepared& prepared, const towline_submit_args& args, const Moved* moved) noexcept;
  bool send_message(Job& job) noexcept;
  Job* take_next() noexcept;
  template <class Visit>
  bool any(Visit&& visit) const noexcept;
  void complete(Job* job) noexcept;

  const plugin::Host host_;
  const uint32_t worker_;
  Mover& mover_;
  framing::Connection* framed_ = nullptr;
  std::atomic<bool> down_{false};

  struct Fifo {
    Job* head = nullptr;
    Job** tail = &head;
    void append(Job* job) noexcept {
      job->next = nullptr;
      *tail = job;
      tail = &job->next;
    }
    Job* take() noexcept {
      Job* const job = head;
      head = job->next;
      if (head == nullptr) tail = &head;
      return job;
    }
  };
  [[nodiscard]] Fifo& queue_of(const Job& job) noexcept { return job.urgent ? urgent_ : bulk_; }

  Fifo urgent_;
  Fifo bulk_;
  UrgentFirst turns_;
  size_t queued_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;  // all that were ever needed at once
  Job* free_ = nullptr;
};

}  // namespace towline::direct

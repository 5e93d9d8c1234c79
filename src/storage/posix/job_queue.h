// A worker's share of the backend: the jobs posted on it, the kernel queue they use, and their progress.
//
// A job can be done in several ways. Small plans were tried inside post already (try_inline). Others begin in one of three
// ways and may change to another:
//
//   kDrive  each pass moves one slice by plain system calls. Cached reads never wait (RWF_NOWAIT); the first
//           one that would, sends the rest to the kernel queue or the pool. Buffered writes are copies into
//           the page cache and hardly ever wait; when one did, the file's writes are left to the pool for a
//           while. Large cached reads are shared with threads of the pool, which take slices from the other
//           end of the same queue.
//   kQueue  operations go to the kernel queue as it has room: direct I/O, and what is not cached. Where that
//           is io_uring, direct I/O goes to a second one first, kernel AIO, which is quicker and may not
//           wait; what would have to goes to io_uring with all that is left of its job.
//   kPool   threads make blocking calls: where the kernel has no queue for us, and for waiting for the device.
//
// Urgent jobs go first in all three, and a thread of the pool does them between two slices of another job; one turn
// in eight is left to the others. Nothing overtakes operations that the kernel already has.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/copy/quicker_way.h"
#include "base/sync/treiber_stack.h"
#include "base/sync/urgent_first.h"
#include "storage/posix/batch_reader.h"
#include "storage/posix/job.h"
#include "storage/posix/kernel_queue.h"
#include "storage/posix/pool.h"
#include "storage/posix/settings.h"
#include "towline/plugin/backend.hpp"

namespace towline::posix {

// Does the whole range by system calls that do not wait. TOWLINE_OK, or TOWLINE_AGAIN: post it. Any thread.
[[nodiscard]] int32_t try_inline(Prepared& prepared, const towline_submit_args& args) noexcept;

class JobQueue {
 public:
  JobQueue(const plugin::Host& host, uint32_t worker, const Settings& settings, Pool& pool);
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;
  ~JobQueue();

  // A thread of the pool gave the job's last share back. Any thread.
  void finished(Job& job) noexcept;

  // ---- the worker, under its lock

  // Opens the kernel queue if a plan needs it. Throws plugin::Failure if a forced engine is not available. let_go() follows
  // even after an exception.
  void get_ready(Prepared& prepared);
  void let_go(Prepared& prepared) noexcept;
  // For a plan that is tried inside post: tries its many small reads together, where that is to be had.
  // Throws std::bad_alloc.
  void get_batch(Prepared& prepared);
  [[nodiscard]] int32_t submit(Prepared& prepared, const towline_submit_args& args) noexcept;
  void cancel(uint64_t cookie) noexcept;
  uint32_t progress() noexcept;
  // True if progress() has work now.
  [[nodiscard]] bool has_work() const noexcept;
  // Ends all of a connection's jobs with `status`; waits for what is in the kernel.
  void close(const Connection& connection, Status status) noexcept;
  [[nodiscard]] std::string describe() const;

 private:
  static constexpr size_t kReapAtOnce = 64;

  void choose_mode(Job& job) noexcept;
  void make_runnable(Job& job) noexcept;
  [[nodiscard]] Job& next_turn(bool urgent) noexcept;
  // True: the job needs no more of this; the worker's share is given back.
  [[nodiscard]] bool step(Job& job, uint64_t& budget) noexcept;
  [[nodiscard]] bool drive(Job& job, uint64_t& budget) noexcept;
  [[nodiscard]] QuickerWay<1, 8>& sharing_of(uint64_t bytes) noexcept {
    const auto slices = static_cast<size_t>(std::bit_width(bytes / kSliceBytes));
    return sharing_[std::min(slices, sharing_.size() - 1)];
  }
  [[nodiscard]] uint32_t copy_helpers(uint64_t bytes) const noexcept;
  [[nodiscard]] bool feed(Job& job, uint64_t& budget) noexcept;
  [[nodiscard]] bool run_here(Job& job, Operation& operation, bool& waits) noexcept;
  void fall_back(Job& job, const Slice& rest) noexcept;
  [[nodiscard]] bool hand_over(Job& job) noexcept;
  [[nodiscard]] const Job* first_handed() const noexcept;
  // A cached read that threads could help with begins, ends.
  void choose_helpers(Job& job) noexcept;
  void note_cost(const Job& job, const towline_part_result& result) noexcept;
  void leave(Job& job) noexcept;
  void over(Job& job) noexcept;
  uint32_t collect_finished() noexcept;
  uint32_t reap() noexcept;
  void ended(Operation& operation, int64_t result) noexcept;
  void push(Operation& operation) noexcept;
  void flush() noexcept;
  void release(Operation& operation) noexcept;
  void attach_files(Prepared& prepared);
  void open_queue();
  void open_direct_queue();
  [[nodiscard]] bool watch(const KernelQueue& queue) noexcept;
  static void on_ready(void* self, uint32_t events) noexcept;

  const plugin::Host host_;
  const uint32_t worker_;
  const Settings& settings_;
  Pool& pool_;

  std::unique_ptr<KernelQueue> queue_;
  std::unique_ptr<KernelQueue> direct_queue_;  // kernel AIO, for direct I/O that need not wait
  std::unique_ptr<BatchReader> batch_;
  bool batch_tried_ = false;
  bool queue_tried_ = false;
  bool direct_queue_tried_ = false;
  std::string no_queue_;  // why there is no queue
  std::unique_ptr<Operation[]> operations_;
  Operation* free_operations_ = nullptr;
  Operation* again_ = nullptr;    // found no room, or came short
  uint32_t in_kernel_ = 0;        // by both queues
  uint32_t in_direct_queue_ = 0;  // of these

  std::vector<std::unique_ptr<Job>> jobs_;  // all that were ever needed at once
  Job* free_jobs_ = nullptr;
  std::vector<Job*> active_;
  std::vector<Job*> runnable_;
  uint32_t urgent_runnable_ = 0;  // of these
  UrgentFirst turns_;
  size_t turn_[2] = {};  // in runnable_, of the others and of the urgent
  // Whether help pays for reads of 1, 2, 4, ... slices: what two processors' caches have depends on what was
  // done before, and waking a thread on the machine.
  std::array<QuickerWay<1, 8>, 6> sharing_;
  TreiberStack<Job, &Job::finished_next> finished_;
};

}  // namespace towline::posix

// One submitted part in progress: the rest of its plan, its workers, and its result.
//
// Everybody who works on a job (the worker, a thread of the pool, each operation in the kernel) holds a
// *share*; the job is over when nothing is left to take, or it was stopped, and the last share is given back.
// The holder that gives back the last share reports the job to its queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/sync/spin.h"
#include "storage/posix/segments.h"
#include "towline/plugin/backend.hpp"
#include "towline/status.h"

namespace towline::posix {

class BatchReader;
class Connection;
class JobQueue;

// A plan prepared on a connection.
struct Prepared : plugin::PreparedBase {
  JobQueue* queue = nullptr;
  uint32_t op = 0;
  std::vector<const File*> files;  // by the plan's number of the remote region
  bool direct = false;             // some file is
  bool syncs = false;              // a WRITE waits for the device
  bool registered = true;          // all of the memory is
  std::vector<int> buffers;        // the kernel queue's numbers of the local regions; empty: none
  std::vector<int> attached;       // descriptors that the kernel queue was told of
  uint64_t unwatched = 0;          // bytes written inside post since that was last measured
  BatchReader* batch = nullptr;    // not null: many small reads, tried together
  std::vector<int> batch_files;    // of those, what the batch calls the files
  int single_fd = -1;              // not -1: the whole plan is one piece of one file
  uint64_t single_offset = 0;
  iovec single = {};

  [[nodiscard]] bool write() const noexcept { return op != 0; }
};

class SpinLock {
 public:
  void lock() noexcept {
    while (locked_.exchange(true, std::memory_order_acquire)) {
      SpinWait spin;
      while (locked_.load(std::memory_order_relaxed) && spin.again()) {
      }
    }
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

class Job {
 public:
  enum class Mode {
    kDrive,  // the worker calls the kernel itself, a slice at a time
    kQueue,  // operations go to the kernel's queue
    kPool,   // threads do it
  };

  // Makes the job new, with one share for the worker. Only when nobody has a share. Throws std::bad_alloc.
  void begin(Prepared& prepared, const towline_submit_args& args);

  // ---- any thread that holds a share

  // The next segments, up to a slice; false: nothing left, or stopped.
  [[nodiscard]] bool take(Slice& slice, uint64_t max_bytes = kSliceBytes) noexcept;
  // Bytes taken from this byte of the plan on were not moved, since the job was stopped.
  void left(uint64_t begin) noexcept;
  // Returns a range that was taken but could not start; the next take() returns it. One at a time, the worker
  // only.
  void put_back(const Slice& slice) noexcept;
  void moved(uint64_t bytes) noexcept;
  // Stops the job; of several failures the first in the plan is kept.
  void failed(Status status, int vendor_code, uint64_t begin, uint64_t end) noexcept;
  void failed_whole(Status status, int vendor_code) noexcept { failed(status, vendor_code, begin_, end_); }
  // An operation failed after it moved some bytes.
  void failed(const Operation& operation, int64_t result) noexcept;
  // Nothing more is begun.
  void stop(Status status) noexcept;
  [[nodiscard]] bool stopped() const noexcept { return stopped_.load(std::memory_order_relaxed); }
  void add_share() noexcept { shares_.fetch_add(1, std::memory_order_relaxed); }
  // True: it was the last one. Report the job.
  [[nodiscard]] bool give_share() noexcept { return shares_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  // A thread of the pool: does a slice, or waits for the device. False: nothing is left to do.
  [[nodiscard]] bool help(BounceBuffers& buffers) noexcept;

  // ---- the worker, once it is over
  [[nodiscard]] towline_part_result result() const noexcept;
  // Whether the device must still be waited for. Then it is no longer, and help() does it.
  [[nodiscard]] bool begin_sync() noexcept;

  [[nodiscard]] Prepared& prepared() const noexcept { return *prepared_; }
  [[nodiscard]] bool write() const noexcept { return prepared_->write(); }
  [[nodiscard]] uint64_t bytes() const noexcept { return end_ - begin_; }
  // The bytes that each worker of the job takes at a time: less if there are several.
  [[nodiscard]] uint64_t slice_bytes() const noexcept { return helpers != 0 ? kSliceBytes / 2 : kSliceBytes; }

  uint64_t cookie = 0;
  Mode mode = Mode::kDrive;
  bool urgent = false;     // before those that are not
  bool runnable = false;   // the worker holds a share and works on it in each pass
  bool pooled = false;     // the pool was asked to help
  bool cached = false;     // as the submit was flagged: what is not cached ends it (kAgain)
  bool hand_over = false;  // as the submit was flagged, where that is worth it; not yet done
  bool handed = false;     // it has been, and no thread was free: the worker turns it as well
  uint32_t helpers = 0;    // threads that are to help with a cached read
  bool waits = false;      // of direct I/O: something of it had to wait
  int processor = -1;      // of who asked threads to work on it
  uint64_t begun_ns = 0;   // of one that shows whether that pays; 0: it does not
  bool handed_on = false;  // the worker has nothing more to do with it: next pass it gives its share back
  std::vector<uint8_t> message;
  Job* next = nullptr;           // in a list of the queue
  Job* finished_next = nullptr;  // in the list of those that threads finished
  Connection* connection = nullptr;

 private:
  void run(Slice& slice, BounceBuffers& buffers) noexcept;

  Prepared* prepared_ = nullptr;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  std::atomic<uint32_t> shares_{0};
  std::atomic<bool> stopped_{false};
  bool syncing_ = false;
  struct Sync {
    uint64_t failures = 0;  // of the file, before anything was written
    uint64_t turn = 0;      // of its calls, the first that will do; known when everything is written
  };
  std::vector<Sync> syncs_;  // of each file; empty: no sync

  SpinLock lock_;  // of all below
  std::optional<plugin::Cursor> cursor_;
  bool has_returned_ = false;
  Slice returned_;
  uint64_t moved_ = 0;
  uint64_t left_from_ = 0;  // UINT64_MAX: nothing is left of what was taken
  Status status_ = Status::kOk;
  int vendor_code_ = 0;
  uint64_t failed_begin_ = 0;
  uint64_t failed_end_ = 0;
};

// The status of a system call on a file that failed with this errno; kShort for 0 bytes at the end of a file.
[[nodiscard]] Status status_of_failure(int error) noexcept;

}  // namespace towline::posix

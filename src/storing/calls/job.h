// One submitted part on its way, and the threads that do it.
//
// Each thread that works on a job holds a share. A job is over when nothing is left to take, or it was stopped, and the
// last share is given back: pieces that were taken are always moved to their end, so that nothing of its memory is
// touched afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "storing/calls/library.h"
#include "storing/own_connection.h"
#include "towline/plugin/cursor.hpp"

namespace towline::calls {

class JobQueue;

// A plan prepared on a connection.
struct Prepared : plugin::PreparedBase {
  JobQueue* queue = nullptr;
  bool write = false;
  bool syncs = false;
  std::vector<const PlainFile*> files;  // by the plan's number of the remote region
  std::vector<void*> handles;
};

class Job {
 public:
  Job(Prepared& prepared_plan, const towline_submit_args& args, storing::OwnConnection* of);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // ---- any thread with a share
  // Takes a batch of pieces and has them moved. False: nothing was left.
  [[nodiscard]] bool work(Caller& caller, const PoolSettings& settings, std::vector<Piece>& pieces) noexcept;
  void add_share() noexcept { shares_.fetch_add(1, std::memory_order_relaxed); }
  // True: it was the last one, and the job's queue is to be told.
  [[nodiscard]] bool give_share() noexcept { return shares_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  void sync_files() noexcept;

  // ---- any thread
  // Nothing more is taken.
  void stop(Status status) noexcept;
  void failed(Status status, int code, uint64_t first, uint64_t last) noexcept;

  // ---- the worker, once it is over
  [[nodiscard]] towline_part_result result() const noexcept;

  Prepared& prepared;
  const uint64_t begin;
  const uint64_t end;
  const uint64_t cookie;
  const bool urgent;  // goes before jobs that are not
  const std::vector<uint8_t> message;
  storing::OwnConnection* const connection;
  Job* finished_next = nullptr;

 private:
  [[nodiscard]] bool take(const PoolSettings& settings, std::vector<Piece>& pieces) noexcept;
  void note(const Piece& piece) noexcept;

  std::atomic<uint32_t> shares_{0};
  mutable std::mutex mutex_;  // of all below
  plugin::Cursor cursor_;
  bool stopped_ = false;
  uint64_t moved_ = 0;
  Status status_ = Status::kOk;
  bool fenced_ = true;
  int code_ = 0;
  uint64_t failed_begin_ = 0;
  uint64_t failed_end_ = 0;
};

}  // namespace towline::calls
